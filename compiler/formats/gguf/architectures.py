"""The architectures of GGUF files: converts their metadata to config.json, and the names and order of their tensors to
those of a Hugging Face folder (conversion/ and src/models/ of github.com/ggml-org/llama.cpp).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...runtime.errors import UnsupportedModel
from ..checkpoint import Tensor
from .container import Container, StoredTensor
from .metadata import Metadata
from .tensors import GgufTensor, Interleaved, as_tensor

Config = dict[str, Any]

TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Norms after attention and feed-forward.
BEHIND = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
# Tensors of RoPE, whose values the configuration contains.
ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"
_LAYER_NAME = re.compile(r"blk\.(\d{1,5})\.(\w+)\.(weight|bias)")
_CHECKPOINT_NAME = re.compile(r"model\.layers\.(\d+)\.([\w.]+)\.(weight|bias)")
# The published values of Llama 3.1 to 3.3. A file contains only the factors of the frequencies.
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """``config`` adds to the configuration that all decoders have. ``names`` are those of a layer's modules besides
    LAYER. ``interleaved``: llama.cpp rotates neighbouring elements of q and k, so their rows are stored in that order.
    ``norm_shift``: norms are stored plus one. ``centered_eps``: the key in config.json of the epsilon of LayerNorms,
    which have biases; None: norms by the root mean square. ``final_norm``: the module of the last norm.
    """

    model_type: str
    config: Callable[[Metadata, Container], Config] = lambda *_: {}
    names: Mapping[str, str] = field(default_factory=dict)
    interleaved: bool = False
    norm_shift: bool = False
    centered_eps: str | None = None
    final_norm: str = TOP["output_norm"]

    @property
    def top(self) -> Mapping[str, str]:
        """The modules outside of layers."""
        return {**TOP, "output_norm": self.final_norm}

    @property
    def eps_key(self) -> str:
        return f"attention.layer_norm_{'rms_' if self.centered_eps is None else ''}epsilon"


def architecture_of(metadata: Metadata) -> GgufArchitecture:
    found = ARCHITECTURES.get(metadata.architecture)
    if found is None:
        raise metadata.unsupported(
            f"architecture {metadata.architecture!r} is not supported; supported: {', '.join(sorted(ARCHITECTURES))}"
        )
    return found


def architecture_for(model_type: str) -> str | None:
    """The architecture of files for a model_type of config.json, or None for a model that ARCHITECTURES lacks."""
    if model_type == "mistral":
        return "llama"
    return next((name for name, each in ARCHITECTURES.items() if each.model_type == model_type), None)


def read_config(architecture: GgufArchitecture, metadata: Metadata, container: Container) -> Config:
    """The values of a config.json. Raises CheckpointError, and UnsupportedModel for a key that is not known."""
    embedding = container.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise metadata.unsupported("it has no matrix 'token_embd.weight'")
    heads, hidden, head_dim = head_sizes(metadata)
    metadata.expect("attention.value_length", head_dim)
    config: Config = {
        "model_type": architecture.model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": metadata.size("feed_forward_length"),
        "num_hidden_layers": metadata.size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        architecture.centered_eps or "rms_norm_eps": metadata.positive(architecture.eps_key),
        "max_position_embeddings": metadata.size("context_length"),
        "tie_word_embeddings": "output.weight" not in container.tensors,
    }
    # The embedding's number of rows determines the vocabulary size.
    metadata.ignore("vocab_size")
    metadata.expect("expert_count", 0)
    metadata.expect("expert_used_count", 0)
    metadata.expect("attention.causal", True)
    config |= rotation(metadata, container, head_dim) | architecture.config(metadata, container)
    metadata.finish()
    return config


def head_sizes(metadata: Metadata) -> tuple[int, int, int]:
    """The number of heads, the hidden size and the head size. Raises CheckpointError if they are impossible."""
    heads, hidden = metadata.size("attention.head_count"), metadata.size("embedding_length")
    if heads > hidden:
        raise metadata.corrupt(
            f"'{metadata.architecture}.attention.head_count' is {heads}, more than "
            f"'{metadata.architecture}.embedding_length', which is {hidden}"
        )
    return heads, hidden, metadata.size("attention.key_length", hidden // heads)


def rotation(metadata: Metadata, container: Container, head_dim: int) -> Config:
    """The rotation of all layers."""
    config: Config = {"rope_theta": metadata.positive("rope.freq_base", 10_000.0)}
    rotated = metadata.size("rope.dimension_count", head_dim)
    if rotated != head_dim:
        config["partial_rotary_factor"] = rotated / head_dim
    # This key only states that the model was trained with the scaling.
    metadata.ignore("rope.scaling.finetuned")
    kind = metadata.text("rope.scaling.type", "none")
    factors = container.tensors.get(ROPE_FACTORS)
    if factors is not None:
        config["rope_scaling"] = llama3_scaling(metadata, factors, config["rope_theta"], head_dim)
    elif LONG_FACTORS in container.tensors:
        config |= longrope(metadata, container)
    elif kind == "linear":
        config["rope_scaling"] = {"rope_type": "linear", "factor": metadata.positive("rope.scaling.factor")}
    elif kind == "yarn":
        scaling: Config = {
            "rope_type": "yarn",
            "factor": metadata.positive("rope.scaling.factor"),
            "original_max_position_embeddings": metadata.size("rope.scaling.original_context_length"),
        }
        for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
            if metadata.has(f"rope.scaling.{key}"):
                scaling[name] = metadata.positive(f"rope.scaling.{key}")
        # This value multiplies the magnitude that follows from the factor.
        metadata.expect("rope.scaling.attn_factor", 1.0)
        config["rope_scaling"] = scaling
    elif kind not in ("none", "longrope"):
        raise metadata.unsupported(f"'rope.scaling.type' is {kind!r}, which is not supported")
    else:
        metadata.expect("rope.scaling.factor", 0.0, 1.0)
        # Without factors, this is only the length of the training context.
        metadata.ignore("rope.scaling.original_context_length")
    return config


def llama3_scaling(metadata: Metadata, stored: StoredTensor, theta: float, head_dim: int) -> Config:
    """The scaling of Llama 3.1. The file contains only the divisors of the frequencies. If they differ from those of
    the published parameters, they become a "longrope" of one length.
    """
    found = GgufTensor(stored.name, stored).rows(0, stored.shape[0])
    if not (np.isfinite(found) & (found > 0)).all():
        raise metadata.corrupt(f"tensor {stored.name!r} has factors that are not finite numbers above 0")
    factor = float(found.max())
    frequencies = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    turns = LLAMA3["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if len(found) == len(expected) and np.allclose(found, expected, rtol=1e-4):
        return {"rope_type": "llama3", "factor": factor, **LLAMA3}
    metadata.ignore("rope.scaling.original_context_length")
    factors = [float(each) for each in found]
    return {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0}


def longrope(metadata: Metadata, container: Container) -> Config:
    lists = {
        name: [float(each) for each in GgufTensor(name, stored).rows(0, stored.shape[0])]
        for name, stored in ((name, container.tensors.get(name)) for name in (SHORT_FACTORS, LONG_FACTORS))
        if stored is not None
    }
    if SHORT_FACTORS not in lists:
        raise metadata.unsupported(f"it has {LONG_FACTORS!r} without {SHORT_FACTORS!r}")
    scaling: Config = {
        "rope_type": "longrope", "short_factor": lists[SHORT_FACTORS], "long_factor": lists[LONG_FACTORS],
    }  # fmt: skip
    if metadata.has("rope.scaling.attn_factor"):
        scaling["attention_factor"] = metadata.positive("rope.scaling.attn_factor")
    return {
        "rope_scaling": scaling,
        "original_max_position_embeddings": metadata.size("rope.scaling.original_context_length"),
    }


# --- differences between architectures ---


def llama(metadata: Metadata, container: Container) -> Config:
    """Llama, and Mistral if the file names a window, which llama.cpp does not use."""
    window = metadata.integer("attention.sliding_window", 0)
    return {"model_type": "mistral", "sliding_window": window} if window else biases(container)


def biases(container: Container) -> Config:
    return {"attention_bias": True} if "blk.0.attn_q.bias" in container.tensors else {}


def qwen3(_: Metadata, container: Container) -> Config:
    return biases(container)


def gemma(metadata: Metadata, large_layers: int) -> Config:
    """Gemma 2 and 3. The largest model divides scores by the square root of hidden size / heads, which no key
    states.
    """
    heads, hidden, _ = head_sizes(metadata)
    head_dim = metadata.size("attention.key_length", 256)
    is_large = metadata.integer("block_count") == large_layers
    return {
        "query_pre_attn_scalar": hidden // heads if is_large else head_dim,
        "sliding_window": metadata.size("attention.sliding_window"),
    }


def gemma2(metadata: Metadata, _: Container) -> Config:
    return {
        **gemma(metadata, large_layers=46),
        "attn_logit_softcapping": metadata.positive("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.positive("final_logit_softcapping", 30.0),
    }


def gemma3(metadata: Metadata, container: Container) -> Config:
    config = gemma(metadata, large_layers=62)
    head_dim = metadata.size("attention.key_length", 256)
    full = rotation(metadata, container, head_dim)
    section = {"rope_type": "default", "rope_theta": full["rope_theta"], **full.get("rope_scaling", {})}
    swa = {"rope_type": "default", "rope_theta": metadata.positive("rope.freq_base_swa", 10_000.0)}
    if metadata.has("final_logit_softcapping"):
        config["final_logit_softcapping"] = metadata.positive("final_logit_softcapping")
    metadata.expect("attention.sliding_window_pattern", 6)
    return {**config, "rope_parameters": {"full_attention": section, "sliding_attention": swa}}


def phi3(metadata: Metadata, _: Container) -> Config:
    # llama.cpp ignores the window of Phi-3, and the value 0 marks Phi-4.
    window = metadata.integer("attention.sliding_window", 0)
    # A head is the hidden size divided by the number of heads.
    return {"sliding_window": window or None, "head_dim": None}


def granite(metadata: Metadata, container: Container) -> Config:
    numbers = {
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
    return {**biases(container), **{name: metadata.positive(key, 1.0) for name, key in numbers.items()}}


def minicpm(metadata: Metadata, container: Container) -> Config:
    # The defaults are the constants of llama.cpp for files without these keys, which are those of MiniCPM-2B.
    hidden, depth = metadata.size("embedding_length"), math.sqrt(metadata.size("block_count"))
    return {
        **biases(container),
        "scale_emb": metadata.positive("embedding_scale", 12.0),
        "scale_depth": metadata.positive("residual_scale", 1.4 / depth) * depth,
        "dim_model_base": round(hidden / metadata.positive("logit_scale", hidden / 256)),
    }


def partly_rotated(metadata: Metadata, container: Container) -> Config:
    """The share of a head that is rotated, whose default is not all of it."""
    head_dim = head_sizes(metadata)[2]
    share = metadata.size("rope.dimension_count", head_dim) / head_dim
    return {**biases(container), "partial_rotary_factor": share}


def phi2(metadata: Metadata, container: Container) -> Config:
    # It always has biases, and a head is the hidden size divided by the number of heads.
    config = partly_rotated(metadata, container)
    return {"partial_rotary_factor": config["partial_rotary_factor"], "head_dim": None}


def seed_oss(_: Metadata, container: Container) -> Config:
    names = {"attention_bias": "blk.0.attn_q.bias", "attention_out_bias": "blk.0.attn_output.bias"}
    return {key: name in container.tensors for key, name in names.items()}


def starcoder2(metadata: Metadata, container: Container) -> Config:
    # llama.cpp does not use the window, and its converter does not write it.
    window = metadata.integer("attention.sliding_window", 0)
    return {"use_bias": "blk.0.attn_q.bias" in container.tensors, "sliding_window": window or None}


def smollm3(_: Metadata, container: Container) -> Config:
    # In llama.cpp, it is a constant that every fourth layer does not rotate.
    return {**biases(container), "no_rope_layer_interval": 4}


ARCHITECTURES = {
    "llama": GgufArchitecture("llama", llama, interleaved=True),
    "qwen2": GgufArchitecture("qwen2"),
    "qwen3": GgufArchitecture("qwen3", qwen3),
    "gemma": GgufArchitecture("gemma", norm_shift=True),
    "gemma2": GgufArchitecture("gemma2", gemma2, BEHIND, norm_shift=True),
    "gemma3": GgufArchitecture("gemma3_text", gemma3, BEHIND, norm_shift=True),
    "phi3": GgufArchitecture("phi3", phi3, FUSED),
    "granite": GgufArchitecture("granite", granite, interleaved=True),
    "smollm3": GgufArchitecture("smollm3", smollm3, interleaved=True),
    "olmo2": GgufArchitecture("olmo2", names={key: BEHIND[key] for key in ("post_attention_norm", "post_ffw_norm")}),
    "minicpm": GgufArchitecture("minicpm", minicpm, interleaved=True),
    "nemotron": GgufArchitecture("nemotron", partly_rotated, norm_shift=True, centered_eps="norm_eps"),
    "phi2": GgufArchitecture(
        "phi",
        phi2,
        {"attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
        centered_eps="layer_norm_eps",
        final_norm="model.final_layernorm",
    ),
    "seed_oss": GgufArchitecture("seed_oss", seed_oss, {"post_attention_norm": "post_attention_layernorm"}),
    "starcoder2": GgufArchitecture(
        "starcoder2", starcoder2, {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}, centered_eps="norm_epsilon"
    ),
}


# --- tensors ---


def read_tensors(architecture: GgufArchitecture, metadata: Metadata, container: Container) -> dict[str, Tensor]:
    """The tensors by the names of a Hugging Face checkpoint. Raises UnsupportedModel for one that is not known."""
    order = Interleaved(head_sizes(metadata)[2])
    tensors: dict[str, Tensor] = {}
    for name, stored in container.tensors.items():
        if name in (ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS):
            continue
        theirs = checkpoint_name(architecture, name)
        if theirs is None:
            raise UnsupportedModel(
                f"{container.path}: tensor {name!r} is not known for architecture {metadata.architecture!r}",
                file=str(container.path), tensor=name,
            )  # fmt: skip
        is_rotated = re.fullmatch(r"blk\.\d+\.attn_[qk]\.(weight|bias)", name) is not None
        shift = -1.0 if architecture.norm_shift and name.endswith("norm.weight") else 0.0
        tensors[theirs] = as_tensor(theirs, stored, order if architecture.interleaved and is_rotated else None, shift)
    return tensors


def checkpoint_name(architecture: GgufArchitecture, name: str) -> str | None:
    layer = _LAYER_NAME.fullmatch(name)
    if layer is not None:
        module = {**LAYER, **architecture.names}.get(layer[2])
        return None if module is None else f"model.layers.{int(layer[1])}.{module}.{layer[3]}"
    module, _, kind = name.rpartition(".")
    known = kind == "weight" or (kind == "bias" and module != "token_embd" and architecture.centered_eps is not None)
    return f"{architecture.top[module]}.{kind}" if module in TOP and known else None


def file_name(architecture: GgufArchitecture, name: str) -> str | None:
    """The inverse of `checkpoint_name`."""
    stored, _, kind = name.rpartition(".")
    for prefix, module in architecture.top.items():
        if stored == module:
            return f"{prefix}.{kind}"
    match = _CHECKPOINT_NAME.fullmatch(name)
    if match is None:
        return None
    # An architecture's own names count before those of all.
    modules = {module: theirs for names in (LAYER, architecture.names) for theirs, module in names.items()}
    return f"blk.{match[1]}.{modules[match[2]]}.{match[3]}" if match[2] in modules else None
