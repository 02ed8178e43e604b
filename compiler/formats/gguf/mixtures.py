"""GGUF files of mixtures of experts: the keys of config.json, and the tensors that hold the experts of all layers.

A file has one stack (E, N, K) each for the experts' gates, what they gate, and their results.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...ir.spec import ExpertSpec, ModelSpec
from .attention import head_sizes, rotation
from .container import Container
from .decoders import granite
from .metadata import Metadata
from .relations import Relation, halves_of_experts, same_names, stacked_experts

Config = dict[str, Any]

# Numbers of functions of the router.
SOFTMAX, SIGMOID, SOFTMAX_CHOSEN = 1, 2, 3


def expert_config(metadata: Metadata, container: Container, key: str, *routers: int) -> Config:
    """``key``: that of the number of experts in config.json; ``routers``: the functions that an architecture has."""
    number, chosen = metadata.size("expert_count"), metadata.size("expert_used_count")
    stack = next((each for name, each in container.tensors.items() if name.endswith("ffn_down_exps.weight")), None)
    if stack is None or stack.shape[0] != number:
        found = "no tensor has experts" if stack is None else f"tensor {stack.name!r} has {stack.shape[0]}"
        raise metadata.corrupt(f"'{metadata.architecture}.expert_count' is {number}, but {found}")
    if chosen > number:
        raise metadata.corrupt(f"'{metadata.architecture}.expert_used_count' is {chosen}, of {number} experts")
    metadata.expect("expert_gating_func", *routers)
    metadata.expect("expert_weights_scale", 0.0, 1.0)
    return {key: number, "num_experts_per_tok": chosen}


def qwen3moe(metadata: Metadata, container: Container) -> Config:
    # llama.cpp divides the feed-forward's size by the number of chosen experts if the file does not name theirs.
    default = max(1, metadata.size("feed_forward_length") // metadata.size("expert_used_count"))
    metadata.expect("expert_weights_norm", True)
    return {
        **expert_config(metadata, container, "num_experts", SOFTMAX),
        "moe_intermediate_size": metadata.size("expert_feed_forward_length", default),
        "norm_topk_prob": True,
        "attention_bias": "blk.0.attn_q.bias" in container.tensors,
    }


def olmoe(metadata: Metadata, container: Container) -> Config:
    metadata.expect("expert_weights_norm", False)
    return {**expert_config(metadata, container, "num_experts", SOFTMAX), "norm_topk_prob": False}


def granitemoe(metadata: Metadata, container: Container) -> Config:
    return {**granite(metadata, container), **expert_config(metadata, container, "num_local_experts", SOFTMAX)}


def gpt_oss(metadata: Metadata, container: Container) -> Config:
    rope = rotation(metadata, container, head_sizes(metadata)[2])
    # llama.cpp rounds the ends of the rotation's ramp; the model was trained with those that are not rounded.
    scaling = {**rope["rope_scaling"], "truncate": False} if "rope_scaling" in rope else {"rope_type": "default"}
    metadata.expect("attention.sliding_window_pattern", 2)
    return {
        **expert_config(metadata, container, "num_local_experts", SOFTMAX_CHOSEN),
        "rope_scaling": scaling,
        "intermediate_size": metadata.size("expert_feed_forward_length"),
        "sliding_window": metadata.size("attention.sliding_window"),
        "layer_types": [("full" if layer % 2 else "sliding") + "_attention" for layer in range(metadata.layers)],
    }


def experts_of(spec: ModelSpec) -> ExpertSpec:
    assert spec.experts is not None
    return spec.experts


def separate_experts(spec: ModelSpec) -> Iterator[Relation]:
    experts = experts_of(spec).number
    for name in ("gate", "up", "down"):
        yield stacked_experts(f"ffn_{name}_exps", f"mlp.experts.{{}}.{name}_proj.weight", experts)
    yield from same_names("ffn_gate_inp", "mlp.gate", ("weight",))


def granite_experts(spec: ModelSpec) -> Iterator[Relation]:
    experts, module = experts_of(spec), "block_sparse_moe"
    yield halves_of_experts(f"{module}.input_linear.weight", experts.number, experts.intermediate_size)
    yield Relation(("ffn_down_exps.weight",), (f"{module}.output_linear.weight",), experts.number)
    yield from same_names("ffn_gate_inp", f"{module}.router.layer", ("weight",))


def gpt_oss_experts(spec: ModelSpec) -> Iterator[Relation]:
    experts, module = experts_of(spec), "mlp.experts"
    for kind, suffix in (("weight", ""), ("bias", "_bias")):
        yield halves_of_experts(
            f"{module}.gate_up_proj{suffix}", experts.number, experts.intermediate_size, alternate=True, kind=kind
        )
        yield Relation((f"ffn_down_exps.{kind}",), (f"{module}.down_proj{suffix}",), experts.number)
    yield from same_names("ffn_gate_inp", "mlp.router")
    yield Relation(("attn_sinks.weight",), ("self_attn.sinks",))
