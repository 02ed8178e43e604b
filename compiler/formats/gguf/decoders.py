"""The keys of config.json that only some architectures of GGUF files have, and the tensors that differ: those of dense
decoders.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...ir.spec import ModelSpec
from ..checkpoint import Tensor
from ..decoder_tensors import XIELU_PARTS
from ..distance_tensors import MadeTensor
from .attention import head_sizes, rotation
from .container import Container
from .metadata import Metadata
from .relations import Axes, Relation, same_names

Config = dict[str, Any]

# Norms after attention and feed-forward.
BEHIND = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
NEOX = {"attn_output": "attention.dense", "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"}
APERTUS = {"attn_norm": "attention_layernorm", "ffn_norm": "feedforward_layernorm"}


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
    is_large = metadata.layers == large_layers
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
    hidden, depth = metadata.size("embedding_length"), math.sqrt(metadata.layers)
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


def olmo(metadata: Metadata, _: Container) -> Config:
    # The file has the epsilon as float32, of which these digits are exact.
    eps = float(f"{metadata.positive('attention.layer_norm_epsilon'):.7g}")
    return {"clip_qkv": metadata.number("attention.clamp_kqv", 0.0) or None, "rms_norm_eps": eps}


def gptneox(metadata: Metadata, container: Container) -> Config:
    metadata.expect("use_parallel_residual", True)
    # The family has names of its own for the keys of the rotation.
    return {
        "rotary_pct": partly_rotated(metadata, container)["partial_rotary_factor"],
        "rotary_emb_base": metadata.positive("rope.freq_base", 10_000.0),
        "attention_bias": "blk.0.attn_qkv.bias" in container.tensors,
    }


def neox_tensors(spec: ModelSpec) -> Iterator[Relation]:
    """In a checkpoint, the queries, keys and values of each head follow each other."""
    for relation in same_names("attn_qkv", "attention.query_key_value"):
        yield replace(relation, rows=Axes((spec.num_heads, 3, spec.head_dim), (1, 0, 2)))


def apertus(metadata: Metadata, container: Container) -> Config:
    config = rotation(metadata, container, head_sizes(metadata)[2])
    plain = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    return {**biases(container), "rope_parameters": {**plain, **config.get("rope_scaling", {})}}


def xielu_parts(metadata: Metadata) -> dict[str, Tensor]:
    """The factors of Apertus' activations: keys with a number for each layer, and tensors of a checkpoint."""
    made: dict[str, Tensor] = {}
    for part in XIELU_PARTS:
        for layer, value in enumerate(metadata.numbers_of_layers(f"xielu.{part}")):
            name = f"model.layers.{layer}.mlp.act_fn.{part}"
            made[name] = MadeTensor(name, 1, partial(np.full, 1, value, np.float32))
    return made


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
