"""The keys of a GGUF file for a model: the inverse of `architectures.read_config`.

Properties that no key expresses are left out here. A caller must read the file again and compare the specs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...ir.rope import inverse_frequencies
from ...ir.spec import ModelSpec
from ...runtime.errors import UnsupportedModel
from .architectures import ARCHITECTURES, KNOWN
from .attention import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS
from .encoders import ENCODERS
from .gemma4 import proportional_factors
from .mixtures import SIGMOID, SOFTMAX_CHOSEN
from .writer import Value

Floats = npt.NDArray[np.float32]


def written_spec(architecture: str, spec: ModelSpec, *, has_factors_apart: bool) -> ModelSpec:
    """The spec of the model whose weights are those of a file. The bundle's weights contain the factors of projections
    unless these are apart. Experts are multiplied by the factor of residuals when their results are added. A file of
    RoBERTa has no rows for positions before the first.
    """
    if architecture in ENCODERS:
        return replace(spec, first_position=0)
    if KNOWN[architecture].scaled_ends:
        spec = replace(spec, embedding_scale=1.0, logit_scale=1.0)
    contains_factors = spec.experts is None and not has_factors_apart
    return replace(spec, residual_scale=1.0, factors={}) if contains_factors else spec


def model_metadata(architecture: str, spec: ModelSpec) -> dict[str, Value]:
    values: dict[str, Value | None] = {
        "block_count": spec.num_layers,
        "context_length": spec.max_position_embeddings,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": spec.num_heads,
        "attention.head_count_kv": spec.num_kv_heads,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        ARCHITECTURES[architecture].eps_key: spec.rms_norm_eps,
        "vocab_size": spec.vocab_size,
        "rope.dimension_count": spec.rope.rotary_dim or spec.head_dim,
        "rope.freq_base": spec.rope.theta,
        **scaling(spec),
        **experts(spec),
        **(OWN[architecture](spec) if architecture in OWN else {}),
    }
    return {f"{architecture}.{key}": value for key, value in values.items() if value is not None}


def scaling(spec: ModelSpec) -> dict[str, Value | None]:
    rope = spec.rope
    if rope.scaling == "linear":
        return {"rope.scaling.type": "linear", "rope.scaling.factor": rope.factor}
    if rope.scaling == "yarn":
        return {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope.factor,
            "rope.scaling.original_context_length": rope.original_max_position_embeddings,
            "rope.scaling.yarn_beta_fast": rope.beta_fast,
            "rope.scaling.yarn_beta_slow": rope.beta_slow,
        }
    if rope.scaling == "longrope":
        return {
            "rope.scaling.original_context_length": rope.original_max_position_embeddings,
            "rope.scaling.attn_factor": rope.attention_factor,
        }
    return {}


def experts(spec: ModelSpec) -> dict[str, Value | None]:
    if spec.experts is None:
        return {}
    return {
        "expert_count": spec.experts.number,
        "expert_used_count": spec.experts.chosen,
    }


def rotation_tensors(architecture: str, spec: ModelSpec) -> dict[str, Floats]:
    """The tensors of numbers of the rotation, in the architectures whose models in llama.cpp have them."""
    rope = spec.rope
    if architecture in ("llama", "apertus") and rope.scaling == "llama3":
        plain = inverse_frequencies(type(rope)(rope.theta, rotary_dim=rope.rotary_dim), spec.head_dim, 1)
        scaled = inverse_frequencies(rope, spec.head_dim, 1)
        return {ROPE_FACTORS: (np.array(plain) / np.array(scaled)).astype(np.float32)}
    if architecture == "gemma4":
        pairs = spec.head_dim // 2
        return {ROPE_FACTORS: proportional_factors((rope.rotary_dim or spec.head_dim) // 2, pairs)}
    if architecture == "phi3" and rope.scaling == "longrope":
        factors = {SHORT_FACTORS: rope.short_factors, LONG_FACTORS: rope.long_factors}
        return {name: np.array(each, np.float32) for name, each in factors.items()}
    return {}


def window_of(spec: ModelSpec) -> int | None:
    return next((window for window in spec.windows if window is not None), None)


def llama(spec: ModelSpec) -> dict[str, Value | None]:
    return {"attention.sliding_window": window_of(spec)}


def gemma2(spec: ModelSpec) -> dict[str, Value | None]:
    return {
        "attention.sliding_window": window_of(spec),
        "attn_logit_softcapping": spec.attention_softcap,
        "final_logit_softcapping": spec.logit_softcap,
    }


def gemma3(spec: ModelSpec) -> dict[str, Value | None]:
    return {
        "attention.sliding_window": window_of(spec),
        "rope.freq_base_swa": (spec.window_rope or spec.rope).theta,
        "final_logit_softcapping": spec.logit_softcap,
    }


def phi3(spec: ModelSpec) -> dict[str, Value | None]:
    # 0 tells a model without windows from Phi-3, whose windows llama.cpp ignores.
    return {"attention.sliding_window": window_of(spec) or 0}


def granite(spec: ModelSpec) -> dict[str, Value | None]:
    return {
        "attention.scale": spec.attention_scale,
        "embedding_scale": spec.embedding_scale,
        "residual_scale": spec.residual_scale,
        "logit_scale": 1 / spec.logit_scale,
    }


def minicpm(spec: ModelSpec) -> dict[str, Value | None]:
    return {
        "embedding_scale": spec.embedding_scale,
        "residual_scale": spec.residual_scale,
        "logit_scale": 1 / spec.logit_scale,
    }


def qwen3moe(spec: ModelSpec) -> dict[str, Value | None]:
    assert spec.experts is not None
    return {"expert_feed_forward_length": spec.experts.intermediate_size}


def gpt_oss(spec: ModelSpec) -> dict[str, Value | None]:
    return {
        **qwen3moe(spec),
        "attention.sliding_window": window_of(spec),
        "expert_gating_func": SOFTMAX_CHOSEN,
    }


def lfm2(spec: ModelSpec) -> dict[str, Value | None]:
    assert spec.states is not None
    heads = [spec.num_kv_heads if mixer == "attention" else 0 for mixer in spec.mixers]
    return {"attention.head_count_kv": np.array(heads, np.int32), "shortconv.l_cache": spec.states.taps}


def lfm2moe(spec: ModelSpec) -> dict[str, Value | None]:
    assert spec.experts is not None
    return {
        **lfm2(spec),
        **qwen3moe(spec),
        "leading_dense_block_count": len(spec.experts.dense_layers),
        "expert_gating_func": SIGMOID,
    }


def qwen35(spec: ModelSpec) -> dict[str, Value | None]:
    assert spec.states is not None
    full = [layer for layer, mixer in enumerate(spec.mixers) if mixer == "attention"]
    return {
        # Positions by time, height and width, which are equal in a text.
        "rope.dimension_sections": np.array([11, 11, 10, 0], np.int32),
        # The layers of the heads that draft tokens are behind the others.
        "block_count": spec.num_layers + spec.draft_layers,
        "nextn_predict_layers": spec.draft_layers or None,
        "full_attention_interval": full[0] + 1 if full else spec.num_layers + 1,
        **state_sizes(spec),
    }


def state_sizes(spec: ModelSpec) -> dict[str, Value | None]:
    assert spec.states is not None
    return {
        "ssm.conv_kernel": spec.states.taps,
        "ssm.state_size": spec.states.key_dim,
        "ssm.group_count": spec.states.groups,
        "ssm.time_step_rank": spec.states.heads,
        "ssm.inner_size": spec.states.heads * spec.states.value_dim,
    }


def mamba2(spec: ModelSpec) -> dict[str, Value | None]:
    absent = ("head_count_kv", "key_length", "value_length")
    return {
        **state_sizes(spec),
        **dict.fromkeys(f"attention.{name}" for name in absent),
        "attention.head_count": 0,
        "feed_forward_length": 0,
        "rope.dimension_count": None,
        "rope.freq_base": None,
    }


def granitehybrid(spec: ModelSpec) -> dict[str, Value | None]:
    heads = [spec.num_kv_heads if mixer == "attention" else 0 for mixer in spec.mixers]
    return {
        **granite(spec),
        **state_sizes(spec),
        "attention.head_count_kv": np.array(heads, np.int32),
        "feed_forward_length": (spec.experts or spec).intermediate_size,
        "expert_shared_feed_forward_length": spec.intermediate_size,
        "rope.scaling.finetuned": not spec.unrotated,
    }


def olmo(spec: ModelSpec) -> dict[str, Value | None]:
    return {"attention.clamp_kqv": spec.qkv_limit}


def gptneox(spec: ModelSpec) -> dict[str, Value | None]:
    require_own_head(spec)
    if not spec.qkv_bias:
        raise UnsupportedModel("GGUF cannot express this gpt_neox model: llama.cpp requires biases of its attention")
    return {"use_parallel_residual": True}


def apertus(spec: ModelSpec) -> dict[str, Value | None]:
    require_own_head(spec)
    return {}


def require_own_head(spec: ModelSpec) -> None:
    if spec.tie_word_embeddings:
        raise UnsupportedModel(
            f"GGUF cannot express this {spec.model_type} model: its head is its embedding, but llama.cpp requires a "
            "head of its own"
        )


def gemma4(spec: ModelSpec) -> dict[str, Value | None]:
    layers = range(spec.num_layers)
    window_rope = spec.window_rope or spec.rope
    window_head_dim = spec.window_head_dim or spec.head_dim
    return {
        "attention.head_count_kv": np.array([spec.heads_of(layer)[0] for layer in layers], np.int32),
        "attention.key_length_swa": window_head_dim,
        "attention.value_length_swa": window_head_dim,
        "attention.shared_kv_layers": spec.num_kv_shared_layers,
        "attention.sliding_window": window_of(spec),
        "attention.sliding_window_pattern": np.array([spec.window(layer) is not None for layer in layers]),
        "embedding_length_per_layer_input": spec.per_layer_size,
        "expert_feed_forward_length": None if spec.experts is None else spec.experts.intermediate_size,
        "feed_forward_length": np.array([spec.intermediate_of(layer) for layer in layers], np.int32),
        "final_logit_softcapping": spec.logit_softcap,
        "rope.dimension_count": spec.head_dim,
        "rope.dimension_count_swa": window_head_dim,
        "rope.freq_base_swa": window_rope.theta,
    }


OWN: Mapping[str, Callable[[ModelSpec], dict[str, Value | None]]] = {
    "llama": llama, "gemma2": gemma2, "gemma3": gemma3, "phi3": phi3, "granite": granite,
    "minicpm": minicpm, "starcoder2": llama, "granitemoe": granite, "gpt-oss": gpt_oss, "lfm2": lfm2,
    "qwen3moe": qwen3moe, "lfm2moe": lfm2moe, "qwen35": qwen35, "granitehybrid": granitehybrid,
    "falcon-h1": state_sizes, "mamba2": mamba2, "gemma4": gemma4, "olmo": olmo, "gptneox": gptneox,
    "apertus": apertus,
}  # fmt: skip
