"""Seed-OSS: Llama with biases on queries, keys and values. ByteDance Seed 2025."""

from __future__ import annotations

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from .decoder import forward
from .decoder_config import read_decoder_config

__all__ = ["forward", "read_config"]


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "seed_oss"."""
    return read_decoder_config(
        config,
        head_dim=config.optional_integer("head_dim", absent=128),
        qkv_bias=config.flag("attention_bias", default=True),
        output_bias=config.flag("attention_out_bias", default=False),
        bias_keys=("mlp_bias",),
        default_eps=1e-6,
    )
