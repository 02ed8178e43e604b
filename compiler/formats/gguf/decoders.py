"""The keys of config.json that only some architectures of GGUF files have: those of dense decoders."""

from __future__ import annotations

import math
from typing import Any

from .attention import head_sizes, rotation
from .container import Container
from .metadata import Metadata

Config = dict[str, Any]

# Norms after attention and feed-forward.
BEHIND = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}


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
