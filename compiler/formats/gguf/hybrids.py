"""GGUF files of models with states: the keys of config.json, and the tensors of the layers that have a state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...ir.spec import ModelSpec, StateSpec
from .attention import kv_heads
from .container import Container
from .metadata import Metadata
from .mixtures import SIGMOID, expert_config, experts_of
from .relations import Axes, Relation, same_names, stacked_experts

Config = dict[str, Any]


# --- LFM2 ---


LFM2 = {
    "attn_norm": "operator_norm",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "attn_output": "self_attn.out_proj",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
}


def lfm2(metadata: Metadata, _: Container) -> Config:
    return {
        "layer_types": ["full_attention" if heads else "conv" for heads in kv_heads(metadata)],
        "conv_L_cache": metadata.size("shortconv.l_cache"),
        # The file has the adjusted size.
        "block_auto_adjust_ff_dim": False,
        # A head is the hidden size divided by the number of heads.
        "head_dim": None,
    }


def lfm2moe(metadata: Metadata, container: Container) -> Config:
    return {
        **lfm2(metadata, container),
        **expert_config(metadata, container, "num_experts", SIGMOID),
        "moe_intermediate_size": metadata.size("expert_feed_forward_length"),
        "num_dense_layers": metadata.integer("leading_dense_block_count"),
        "norm_topk_prob": True,
        "use_expert_bias": any(name.endswith(".exp_probs_b.bias") for name in container.tensors),
    }


def short_convolution(spec: ModelSpec) -> Iterator[Relation]:
    for name in ("in_proj", "out_proj"):
        yield from same_names(f"shortconv.{name}", f"conv.{name}", ("weight",))
    yield Relation(("shortconv.conv.weight",), ("conv.conv.weight",), spec.hidden_size)


def lfm2_experts(spec: ModelSpec) -> Iterator[Relation]:
    module = "feed_forward"
    yield from short_convolution(spec)
    for name, own in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        yield stacked_experts(f"ffn_{name}_exps", f"{module}.experts.{{}}.{own}.weight", experts_of(spec).number)
    yield from same_names("ffn_gate_inp", f"{module}.gate", ("weight",))
    yield Relation(("exp_probs_b.bias",), (f"{module}.expert_bias",))


# --- Qwen3.5 ---


def qwen35(metadata: Metadata, container: Container) -> Config:
    # The layers behind the others are those of the heads that draft tokens.
    layers = metadata.layers - metadata.integer("nextn_predict_layers", 0)
    for layer in range(max(0, layers), metadata.layers):
        if f"blk.{layer}.nextn.eh_proj.weight" not in container.tensors:
            raise metadata.corrupt(
                f"layer {layer} of {metadata.layers} should be one of heads that draft tokens "
                f"('nextn_predict_layers' is {metadata.layers - layers}), and lacks their tensors"
            )
    every = metadata.size("full_attention_interval", 4)
    kinds = [(layer + 1) % every != 0 for layer in range(layers)]
    if metadata.has("attention.recurrent_layers"):
        kinds = [bool(each) for each in metadata.of_layers("attention.recurrent_layers")[:layers]]
    # A text has one position for each token.
    metadata.ignore("rope.dimension_sections")
    heads = metadata.size("ssm.time_step_rank")
    return {
        "num_hidden_layers": layers,
        "layer_types": ["linear_attention" if each else "full_attention" for each in kinds],
        "linear_conv_kernel_dim": metadata.size("ssm.conv_kernel"),
        "linear_key_head_dim": metadata.size("ssm.state_size"),
        "linear_num_key_heads": metadata.size("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": max(1, metadata.size("ssm.inner_size") // heads),
        "attention_bias": "blk.0.attn_q.bias" in container.tensors,
    }


# What a file has of the heads besides a layer.
DRAFT_HEADS = {
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "shared_head_norm": "norm",
    "embed_tokens": "embed_tokens",
    "shared_head_head": "lm_head",
}


def states_of(spec: ModelSpec) -> StateSpec:
    assert spec.states is not None
    return spec.states


def gated_delta(spec: ModelSpec) -> Iterator[Relation]:
    """In a file, the heads of values that share a key are as far apart as there are keys."""
    states, module = states_of(spec), "linear_attn"
    keys, values = states.groups * states.key_dim, states.heads * states.value_dim

    def by_head(size: int, start: int = 0) -> Axes:
        return Axes((states.groups, states.heads // states.groups, size), (1, 0, 2), start)

    rows = {
        "attn_qkv": ("in_proj_qkv", by_head(states.value_dim, 2 * keys)),
        "attn_gate": ("in_proj_z", by_head(states.value_dim)),
        "ssm_alpha": ("in_proj_a", by_head(1)),
        "ssm_beta": ("in_proj_b", by_head(1)),
    }
    for name, (own, order) in rows.items():
        yield Relation((f"{name}.weight",), (f"{module}.{own}.weight",), rows=order)
    taps = by_head(states.value_dim * states.taps, 2 * keys * states.taps)
    yield Relation(("ssm_conv1d.weight",), (f"{module}.conv1d.weight",), 2 * keys + values, taps)
    yield Relation(("ssm_a",), (f"{module}.A_log",), rows=by_head(1), values="negative_exp")
    yield Relation(("ssm_dt.bias",), (f"{module}.dt_bias",), rows=by_head(1))
    yield Relation(("ssm_norm.weight",), (f"{module}.norm.weight",))
    columns = by_head(states.value_dim) if states.heads > states.groups else None
    yield Relation(("ssm_out.weight",), (f"{module}.out_proj.weight",), columns=columns)
