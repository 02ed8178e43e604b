"""The families of mlx-lm that differ from a plain decoder: a test for the specs that each computes, and the keys of
config.json that only it reads, for a context.
"""

from __future__ import annotations

import math
from typing import Any

from nearfar.compiler.ir.rope import rotary_dim
from nearfar.compiler.ir.spec import ExpertSpec, ModelSpec

from .rope_config import rope_parameters
from .spec_facts import (
    full_layer_interval,
    has_bias,
    has_regular_full_layers,
    has_whole_query_scalar,
    is_plain,
    layer_types,
    partial_rotary_factor,
    plain_windows_beside_full_layers,
    query_scalar,
    rotates_by_factor,
    rotates_whole_heads,
    same_biases,
    splits_hidden_size,
    window_sizes,
)


def bias_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    return {"attention_bias": spec.qkv_bias, "mlp_bias": spec.mlp_bias}


def phi3_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    original = {"original_max_position_embeddings": spec.rope.original_max_position_embeddings}
    factor = {"partial_rotary_factor": partial_rotary_factor(spec)}
    return {**factor, **original} if spec.rope.scaling == "longrope" else factor


def phi_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    return {"layer_norm_eps": spec.rms_norm_eps, "partial_rotary_factor": partial_rotary_factor(spec)}


def nemotron_keys(spec: ModelSpec, context: int) -> dict[str, Any]:
    factor = {"norm_eps": spec.rms_norm_eps, "partial_rotary_factor": partial_rotary_factor(spec)}
    return {**bias_keys(spec, context), **factor, "hidden_act": "relu2"}


def seed_oss_keys(spec: ModelSpec, context: int) -> dict[str, Any]:
    return {**bias_keys(spec, context), "attention_out_bias": spec.output_bias}


def computes_minicpm(spec: ModelSpec) -> bool:
    """mlx-lm scales the logits of a model with a head of its own, and divides by a whole number."""
    base = spec.logit_scale * spec.hidden_size
    return (
        is_plain(spec)
        and splits_hidden_size(spec)
        and (spec.logit_scale == 1 if spec.tie_word_embeddings else math.isclose(base, round(base), rel_tol=1e-9))
    )


def minicpm_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    return {
        "scale_emb": spec.embedding_scale,
        "scale_depth": spec.residual_scale * math.sqrt(spec.num_layers),
        "dim_model_base": round(spec.logit_scale * spec.hidden_size),
    }


def ministral3_keys(spec: ModelSpec, context: int) -> dict[str, Any]:
    # mlx-lm needs both keys. A rotation without an original length does not scale queries.
    scale = {
        "original_max_position_embeddings": spec.max_position_embeddings,
        "llama_4_scaling_beta": spec.rope.query_beta,
    }
    return {"rope_parameters": {**scale, **rope_parameters(spec.rope, spec.head_dim, context)}}


def granite_keys(spec: ModelSpec, context: int) -> dict[str, Any]:
    return {
        **bias_keys(spec, context),
        "attention_multiplier": spec.attention_scale or spec.head_dim**-0.5,
        "embedding_multiplier": spec.embedding_scale,
        "residual_multiplier": spec.residual_scale,
        "logits_scaling": 1 / spec.logit_scale,
    }


def smollm3_keys(spec: ModelSpec, context: int) -> dict[str, Any]:
    rotates = [int(layer not in spec.unrotated) for layer in range(spec.num_layers)]
    return {**bias_keys(spec, context), "no_rope_layers": rotates}


def olmo3_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    windows = {"layer_types": layer_types(spec), "sliding_window": max(window_sizes(spec))}
    return {"attention_bias": spec.qkv_bias, **windows}


def computes_olmo3(spec: ModelSpec) -> bool:
    """mlx-lm scales the rotation of layers without a window only."""
    local = spec.window_rope or spec.rope
    return (
        same_biases(spec)
        and not spec.mlp_bias
        and spec.qk_norm
        and rotates_whole_heads(spec)
        and plain_windows_beside_full_layers(spec)
        and (local.theta, local.scaling, rotary_dim(local, spec.head_dim)) == (spec.rope.theta, "none", spec.head_dim)
    )


def exaone4_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    has_windows = bool(window_sizes(spec))
    pattern = "".join("G" if window is None else "L" for window in spec.windows)
    return {
        # Keys that mlx-lm requires even if they are null.
        **({} if spec.rope.scaling not in ("none", "dynamic") else {"rope_scaling": None}),
        "sliding_window": max(window_sizes(spec)) if has_windows else None,
        "sliding_window_pattern": pattern if has_windows else None,
        **({"layer_types": layer_types(spec)} if has_windows else {}),
    }


def computes_exaone4(spec: ModelSpec) -> bool:
    """mlx-lm rotates all layers of a model without windows, and only those with one of a model with windows."""
    full = tuple(layer for layer in range(spec.num_layers) if spec.window(layer) is None)
    fits = (
        plain_windows_beside_full_layers(spec) and spec.unrotated == full if window_sizes(spec) else not spec.unrotated
    )
    return not has_bias(spec) and spec.qk_norm and rotates_whole_heads(spec) and fits


def gemma2_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(query_scalar(spec)),
        "attn_logit_softcapping": spec.attention_softcap,
        "final_logit_softcapping": spec.logit_softcap,
    }


def computes_gemma2(spec: ModelSpec) -> bool:
    return (
        not has_bias(spec)
        and not spec.qk_norm
        and rotates_whole_heads(spec)
        and spec.tie_word_embeddings
        and has_whole_query_scalar(spec)
        and None not in (spec.attention_softcap, spec.logit_softcap)
    )


def gemma3_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(query_scalar(spec)),
        "rope_local_base_freq": (spec.window_rope or spec.rope).theta,
        "sliding_window_pattern": full_layer_interval(spec),
        "sliding_window": max(window_sizes(spec), default=spec.max_position_embeddings),
        "layer_types": layer_types(spec),
    }


def computes_gemma3(spec: ModelSpec) -> bool:
    every = full_layer_interval(spec)
    local = spec.window_rope or spec.rope
    return (
        not has_bias(spec)
        and spec.qk_norm
        and rotates_whole_heads(spec)
        and has_regular_full_layers(spec)
        and has_whole_query_scalar(spec)
        and every <= spec.num_layers
        and len(window_sizes(spec)) <= 1
        and (every == 1 or local.scaling == "none")
        and rotary_dim(local, spec.head_dim) == spec.head_dim
    )


def gemma4_keys(spec: ModelSpec, context: int) -> dict[str, Any]:
    window_rope, window_head_dim = spec.window_rope or spec.rope, spec.window_head_dim or spec.head_dim
    full = {
        **rope_parameters(spec.rope, spec.head_dim, context),
        "partial_rotary_factor": partial_rotary_factor(spec),
    }
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": window_head_dim,
        "global_head_dim": spec.head_dim,
        "num_key_value_heads": spec.window_num_kv_heads or spec.num_kv_heads,
        "num_global_key_value_heads": spec.num_kv_heads,
        "attention_k_eq_v": spec.keys_are_values,
        "rope_parameters": {
            "full_attention": full,
            "sliding_attention": rope_parameters(window_rope, window_head_dim, context),
        },
        "layer_types": layer_types(spec),
        "sliding_window": max(window_sizes(spec), default=spec.max_position_embeddings),
        "num_kv_shared_layers": spec.num_kv_shared_layers,
        "use_double_wide_mlp": spec.shared_intermediate_size not in (None, spec.intermediate_size),
        "hidden_size_per_layer_input": spec.per_layer_size,
        "vocab_size_per_layer_input": spec.per_layer_vocab_size,
        "final_logit_softcapping": spec.logit_softcap,
        "enable_moe_block": spec.experts is not None,
        **({} if spec.experts is None else gemma4_expert_keys(spec.experts)),
    }


def gemma4_expert_keys(experts: ExpertSpec) -> dict[str, Any]:
    return {
        "num_experts": experts.number,
        "top_k_experts": experts.chosen,
        "moe_intermediate_size": experts.intermediate_size,
    }


def computes_gemma4(spec: ModelSpec) -> bool:
    local, window_head_dim = spec.window_rope or spec.rope, spec.window_head_dim or spec.head_dim
    return (
        not has_bias(spec)
        and spec.qk_norm
        and spec.attention_scale == 1
        and spec.tie_word_embeddings
        and len(window_sizes(spec)) <= 1
        # mlx-lm reads a second number of heads only with the key of shared values.
        and (spec.keys_are_values or spec.window_num_kv_heads in (None, spec.num_kv_heads))
        and (spec.experts is None or (spec.experts.router == "softmax" and spec.experts.normalized))
        and spec.shared_intermediate_size in (None, spec.intermediate_size, 2 * spec.intermediate_size)
        and (rotates_whole_heads(spec) or spec.rope.scaling == "proportional")
        and rotates_by_factor(spec)
        and local.scaling in ("none", "linear")
        and rotary_dim(local, window_head_dim) == window_head_dim
    )


def cohere2_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    return {
        "attention_bias": spec.qkv_bias,
        "layer_norm_bias": False,
        "layer_norm_eps": spec.rms_norm_eps,
        "logit_scale": spec.logit_scale,
        "sliding_window_pattern": full_layer_interval(spec),
        "sliding_window": max(window_sizes(spec), default=spec.max_position_embeddings),
        "layer_types": layer_types(spec),
    }


def computes_cohere2(spec: ModelSpec) -> bool:
    full = tuple(layer for layer in range(spec.num_layers) if spec.window(layer) is None)
    return (
        same_biases(spec)
        and not spec.mlp_bias
        and spec.tie_word_embeddings
        and splits_hidden_size(spec)
        and rotates_whole_heads(spec)
        and has_regular_full_layers(spec)
        and full_layer_interval(spec) <= spec.num_layers
        and len(window_sizes(spec)) <= 1
        and spec.unrotated == full
    )


def stablelm_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    return {
        "layer_norm_eps": spec.rms_norm_eps,
        "partial_rotary_factor": partial_rotary_factor(spec),
        "use_parallel_residual": False,
        "use_qkv_bias": spec.qkv_bias,
    }


def computes_stablelm(spec: ModelSpec) -> bool:
    return (
        not spec.output_bias
        and not spec.mlp_bias
        and not spec.tie_word_embeddings
        and splits_hidden_size(spec)
        and rotates_by_factor(spec)
    )
