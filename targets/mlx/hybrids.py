"""The models of mlx-lm with experts or with states of sequences: a test for the specs that each computes, and the keys
of config.json that only it reads, for a context.
"""

from __future__ import annotations

from typing import Any

from nearfar.compiler.arch.mamba_config import UNLIMITED
from nearfar.compiler.ir.spec import ExpertSpec, ModelSpec, StateSpec

from .families import granite_keys
from .spec_facts import (
    has_bias,
    partial_rotary_factor,
    rotates_by_factor,
    rotates_whole_heads,
    same_biases,
    splits_hidden_size,
)

# The epsilon of the norms in front of mlx-lm's Mamba-2 layers, whatever config.json says.
MAMBA2_EPS = 1e-5
NOT_OF_LFM2 = frozenset({"head_dim", "hidden_act", "rms_norm_eps"})
NOT_OF_MAMBA2 = frozenset({"num_attention_heads", "num_key_value_heads", "rms_norm_eps", "rope_theta"})


def experts_of(spec: ModelSpec) -> ExpertSpec:
    assert spec.experts is not None
    return spec.experts


def states_of(spec: ModelSpec) -> StateSpec:
    assert spec.states is not None
    return spec.states


def has_plain_experts(spec: ModelSpec, router: str, *, scaled: bool = False) -> bool:
    """Whether the experts have the gate of a feed-forward and no biases, and the router has no factor."""
    experts = spec.experts
    return (
        experts is not None
        and experts.router == router
        and not experts.biases
        and (experts.limit, experts.slope, experts.shift) == (None, 1.0, 0.0)
        and (scaled or (experts.scale == 1 and not experts.choice_bias))
    )


def number_keys(spec: ModelSpec, key: str = "num_experts") -> dict[str, Any]:
    return {key: experts_of(spec).number, "num_experts_per_tok": experts_of(spec).chosen}


def computes_qwen3_moe(spec: ModelSpec) -> bool:
    return has_plain_experts(spec, "softmax") and not has_bias(spec) and spec.qk_norm and rotates_whole_heads(spec)


def qwen3_moe_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    return {
        **number_keys(spec),
        "moe_intermediate_size": experts_of(spec).intermediate_size,
        "norm_topk_prob": experts_of(spec).normalized,
        "mlp_only_layers": list(experts_of(spec).dense_layers),
        "decoder_sparse_step": 1,
    }


def computes_olmoe(spec: ModelSpec) -> bool:
    return (
        has_plain_experts(spec, "softmax")
        and not experts_of(spec).dense_layers
        and same_biases(spec)
        and not spec.mlp_bias
        and spec.qk_norm
        and rotates_whole_heads(spec)
    )


def olmoe_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    return {
        **number_keys(spec),
        "intermediate_size": experts_of(spec).intermediate_size,
        "norm_topk_prob": experts_of(spec).normalized,
        "attention_bias": spec.qkv_bias,
    }


def is_granite(spec: ModelSpec) -> bool:
    return same_biases(spec) and not spec.mlp_bias and not spec.qk_norm and splits_hidden_size(spec)


def computes_granitemoe(spec: ModelSpec) -> bool:
    return (
        has_plain_experts(spec, "softmax_chosen")
        and not experts_of(spec).dense_layers
        and is_granite(spec)
        and rotates_whole_heads(spec)
    )


def granitemoe_keys(spec: ModelSpec, context: int) -> dict[str, Any]:
    size = {"intermediate_size": experts_of(spec).intermediate_size}
    return {**granite_keys(spec, context), **number_keys(spec, "num_local_experts"), **size}


def expansion(spec: ModelSpec) -> int:
    """How many times the hidden size a row of Mamba-2 has, which transformers checks when it reads config.json."""
    return states_of(spec).heads * states_of(spec).value_dim // spec.hidden_size


def computes_granitemoehybrid(spec: ModelSpec) -> bool:
    return (
        {*spec.mixers} <= {"attention", "mamba2"}
        and states_of(spec).norm == "after"
        and states_of(spec).norm_groups == 1
        and expansion(spec) * spec.hidden_size == states_of(spec).heads * states_of(spec).value_dim
        and (spec.experts is None or computes_granitemoe(spec))
        and is_granite(spec)
        and rotates_whole_heads(spec)
        and spec.unrotated in ((), tuple(range(spec.num_layers)))
    )


def granitemoehybrid_keys(spec: ModelSpec, context: int) -> dict[str, Any]:
    states, experts = states_of(spec), spec.experts
    return {
        **granite_keys(spec, context),
        "layer_types": ["mamba" if mixer == "mamba2" else mixer for mixer in spec.mixers],
        "position_embedding_type": "nope" if spec.unrotated else "rope",
        "intermediate_size": experts.intermediate_size if experts else spec.intermediate_size,
        "shared_intermediate_size": spec.intermediate_size,
        **(number_keys(spec, "num_local_experts") if experts else {"num_local_experts": 0, "num_experts_per_tok": 0}),
        "mamba_expand": expansion(spec),
        "mamba_n_heads": states.heads,
        "mamba_d_head": states.value_dim,
        "mamba_d_state": states.key_dim,
        "mamba_d_conv": states.taps,
        "mamba_n_groups": states.groups,
        "mamba_conv_bias": states.conv_bias,
        "mamba_proj_bias": states.bias,
        "time_step_limit": UNLIMITED,
    }


def computes_mamba2(spec: ModelSpec) -> bool:
    states = states_of(spec)
    return (
        {*spec.mixers} == {"mamba2"}
        and states.norm == "after"
        and states.norm_groups == 1
        and expansion(spec) * spec.hidden_size == states.heads * states.value_dim
        and spec.rms_norm_eps == MAMBA2_EPS
    )


def mamba2_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    states = states_of(spec)
    return {
        "num_heads": states.heads,
        "head_dim": states.value_dim,
        "expand": expansion(spec),
        "state_size": states.key_dim,
        "conv_kernel": states.taps,
        "n_groups": states.groups,
        "use_bias": states.bias,
        "use_conv_bias": states.conv_bias,
        "layer_norm_epsilon": spec.rms_norm_eps,
        "time_step_limit": UNLIMITED,
        "time_step_rank": "auto",
    }


def computes_lfm2(spec: ModelSpec) -> bool:
    """mlx-lm needs layers of both kinds, and has no head of its own."""
    return (
        {*spec.mixers} == {"attention", "short_conv"}
        and states_of(spec).bias == states_of(spec).conv_bias
        and spec.tie_word_embeddings
        and not has_bias(spec)
        and spec.qk_norm
        and splits_hidden_size(spec)
        and rotates_whole_heads(spec)
    )


def lfm2_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    return {
        "layer_types": ["conv" if mixer == "short_conv" else "full_attention" for mixer in spec.mixers],
        "conv_L_cache": states_of(spec).taps,
        "conv_bias": states_of(spec).conv_bias,
        "norm_eps": spec.rms_norm_eps,
        "block_dim": spec.hidden_size,
        "block_ff_dim": spec.intermediate_size,
        "block_auto_adjust_ff_dim": False,
        "block_multiple_of": 1,
        "block_ffn_dim_multiplier": 1.0,
    }


def computes_lfm2_moe(spec: ModelSpec) -> bool:
    dense = experts_of(spec).dense_layers
    return has_plain_experts(spec, "sigmoid", scaled=True) and dense == tuple(range(len(dense))) and computes_lfm2(spec)


def lfm2_moe_keys(spec: ModelSpec, context: int) -> dict[str, Any]:
    experts = experts_of(spec)
    keys = {name: value for name, value in lfm2_keys(spec, context).items() if not name.startswith("block_")}
    return {
        **keys,
        **number_keys(spec),
        "moe_intermediate_size": experts.intermediate_size,
        "norm_topk_prob": experts.normalized,
        "routed_scaling_factor": experts.scale,
        "use_expert_bias": experts.choice_bias,
        "num_dense_layers": len(experts.dense_layers),
    }


def full_attention_interval(spec: ModelSpec) -> int:
    return (*spec.mixers, "attention").index("attention") + 1


def computes_qwen3_5(spec: ModelSpec) -> bool:
    """mlx-lm needs layers of both kinds, those of attention at equal distances."""
    every = full_attention_interval(spec)
    return (
        {*spec.mixers} == {"attention", "gated_delta"}
        and all((mixer == "attention") == ((layer + 1) % every == 0) for layer, mixer in enumerate(spec.mixers))
        and same_biases(spec)
        and not spec.mlp_bias
        and spec.qk_norm
        and rotates_by_factor(spec)
    )


def qwen3_5_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    states = states_of(spec)
    return {
        "attention_bias": spec.qkv_bias,
        "full_attention_interval": full_attention_interval(spec),
        "linear_num_value_heads": states.heads,
        "linear_num_key_heads": states.groups,
        "linear_key_head_dim": states.key_dim,
        "linear_value_head_dim": states.value_dim,
        "linear_conv_kernel_dim": states.taps,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": spec.rope.theta,
            "partial_rotary_factor": partial_rotary_factor(spec),
        },
    }
