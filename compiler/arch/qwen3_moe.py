"""Qwen3 with experts in place of the feed-forward of most layers. Yang et al. 2025."""

from __future__ import annotations

from dataclasses import replace

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from .decoder import forward
from .decoder_config import read_decoder_config, read_num_layers
from .expert_config import HARMLESS, read_experts

__all__ = ["forward", "read_config"]


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "qwen3_moe"."""
    config.expect("use_sliding_window", False)
    config.ignore("sliding_window", "max_window_layers")
    experts = read_experts(
        config,
        "num_experts",
        "num_local_experts",
        size_key="moe_intermediate_size",
        normalized=config.flag("norm_topk_prob", default=False),
        dense_layers=_dense_layers(config),
    )
    spec = read_decoder_config(
        config,
        num_kv_heads=config.integer("num_key_value_heads"),
        bias_keys=("attention_bias",),
        qk_norm=True,
        harmless=HARMLESS,
    )
    return replace(spec, experts=experts)


def _dense_layers(config: ConfigReader) -> tuple[int, ...]:
    """The layers in 'mlp_only_layers', and those that are not every 'decoder_sparse_step'-th."""
    step = config.integer("decoder_sparse_step", default=1)
    named = config.integers("mlp_only_layers") or ()
    return tuple(layer for layer in range(read_num_layers(config)) if layer in named or (layer + 1) % step)
