"""GGUF files of models with Mamba-2 layers: Granite 4, Falcon-H1 and Mamba-2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...ir.spec import ModelSpec
from .attention import kv_heads
from .container import Container
from .decoders import granite
from .hybrids import states_of
from .metadata import Metadata
from .mixtures import SOFTMAX, expert_config, granite_experts
from .relations import Relation, same_names

Config = dict[str, Any]

MAMBA2 = {"attn_norm": "norm"}


def mixer_config(metadata: Metadata, container: Container) -> Config:
    """The sizes of Mamba-2 in the names of hybrids."""
    return {
        "mamba_d_ssm": metadata.size("ssm.inner_size"),
        "mamba_n_heads": metadata.size("ssm.time_step_rank"),
        "mamba_d_state": metadata.size("ssm.state_size"),
        "mamba_n_groups": metadata.size("ssm.group_count"),
        "mamba_d_conv": metadata.size("ssm.conv_kernel"),
        "mamba_conv_bias": has(container, "ssm_conv1d.bias"),
    }


def has(container: Container, name: str) -> bool:
    """Whether any layer has a tensor of this name."""
    return any(each.endswith(f".{name}") for each in container.tensors)


def granitehybrid(metadata: Metadata, container: Container) -> Config:
    mixed = metadata.integer("expert_count", 0) > 0
    experts = expert_config(metadata, container, "num_local_experts", SOFTMAX) if mixed else {"num_local_experts": 0}
    metadata.ignore("expert_used_count")
    intermediate = metadata.size("feed_forward_length")
    return {
        **granite(metadata, container),
        **mixer_config(metadata, container),
        **experts,
        "intermediate_size": intermediate,
        "shared_intermediate_size": metadata.size("expert_shared_feed_forward_length", intermediate),
        "layer_types": ["attention" if heads else "mamba" for heads in kv_heads(metadata)],
        # llama.cpp rotates only if the file says that the model was trained with a scaled rotation.
        "position_embedding_type": "rope" if metadata.flag("rope.scaling.finetuned", True) else "nope",
    }


def falcon_h1(metadata: Metadata, container: Container) -> Config:
    """The tensors contain all factors. llama.cpp normalizes behind the gate."""
    return {
        **mixer_config(metadata, container),
        "mamba_rms_norm": has(container, "ssm_norm.weight"),
        "mamba_norm_before_gate": False,
    }


def mamba2(metadata: Metadata, container: Container) -> Config:
    metadata.expect("attention.head_count", 0)
    metadata.expect("feed_forward_length", 0)
    return {
        "num_heads": metadata.size("ssm.time_step_rank"),
        "head_dim": "auto",
        "state_size": metadata.size("ssm.state_size"),
        "n_groups": metadata.size("ssm.group_count"),
        "conv_kernel": metadata.size("ssm.conv_kernel"),
        "mamba_d_ssm": metadata.size("ssm.inner_size"),
        "use_conv_bias": has(container, "ssm_conv1d.bias"),
    }


def mixer(spec: ModelSpec, module: str = "mamba") -> Iterator[Relation]:
    states = states_of(spec)
    width = states.heads * states.value_dim
    for name in ("in", "out"):
        yield from same_names(f"ssm_{name}", f"{module}.{name}_proj")
    channels = width + 2 * states.groups * states.key_dim
    yield Relation(("ssm_conv1d.weight",), (f"{module}.conv1d.weight",), channels)
    yield Relation(("ssm_conv1d.bias",), (f"{module}.conv1d.bias",))
    yield Relation(("ssm_a",), (f"{module}.A_log",), states.heads, values="negative_exp")
    yield Relation(("ssm_d",), (f"{module}.D",), states.heads)
    yield Relation(("ssm_dt.bias",), (f"{module}.dt_bias",))
    yield Relation(("ssm_norm.weight",), (f"{module}.norm.weight",), states.groups)


def granite_hybrid_tensors(spec: ModelSpec) -> Iterator[Relation]:
    yield from mixer(spec)
    suffix = "_shexp" if spec.experts else ""
    gates = tuple(f"ffn_{name}{suffix}.weight" for name in ("gate", "up"))
    yield Relation(gates, ("shared_mlp.input_linear.weight",))
    yield Relation((f"ffn_down{suffix}.weight",), ("shared_mlp.output_linear.weight",))
    if spec.experts:
        yield from granite_experts(spec)


def falcon_h1_tensors(spec: ModelSpec) -> Iterator[Relation]:
    yield from mixer(spec)
    # This name has no ending.
    yield Relation(("ffn_norm",), ("pre_ff_layernorm.weight",))
    for name in ("gate", "up", "down"):
        yield from same_names(f"ffn_{name}", f"feed_forward.{name}_proj")


def mamba2_tensors(spec: ModelSpec) -> Iterator[Relation]:
    yield from mixer(spec, "mixer")
