"""Seed-OSS: Llama with biases on queries, keys and values. ByteDance Seed 2025."""

from __future__ import annotations

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from .decoder import forward
from .decoder_config import read_activation, read_decoder_config

__all__ = ["forward", "read_config"]


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "seed_oss"."""
    return read_decoder_config(
        config,
        num_kv_heads=config.optional_integer("num_key_value_heads") or config.integer("num_attention_heads"),
        head_dim=config.optional_integer("head_dim") if config.has("head_dim") else 128,
        activation=read_activation(config, "hidden_act", "silu"),
        qkv_bias=config.flag("attention_bias", default=True),
        output_bias=config.flag("attention_out_bias", default=False),
        mlp_bias=config.flag("mlp_bias", default=False),
        default_eps=1e-6,
    )
