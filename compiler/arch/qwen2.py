"""Qwen2 and Qwen2.5: Llama with biases on the query, key and value projections only. Yang et al. 2024."""

from __future__ import annotations

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from .decoder import forward
from .decoder_config import read_decoder_config, read_layer_windows

__all__ = ["forward", "read_config"]


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "qwen2"."""
    return read_decoder_config(
        config,
        num_kv_heads=config.integer("num_key_value_heads"),
        windows=read_layer_windows(config),
        qkv_bias=True,
    )
