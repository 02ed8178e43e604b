"""Qwen3: Qwen2 without biases, with RMS norms over each head of queries and keys and its own head size. Yang et al.
2025.
"""

from __future__ import annotations

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from .decoder import forward
from .decoder_config import read_decoder_config, read_layer_windows

__all__ = ["forward", "read_config"]


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "qwen3"."""
    return read_decoder_config(
        config,
        num_kv_heads=config.integer("num_key_value_heads"),
        windows=read_layer_windows(config),
        # transformers assumes 128 for an absent key; null means hidden_size / num_attention_heads.
        head_dim=config.optional_integer("head_dim", absent=128),
        bias_keys=("attention_bias",),
        qk_norm=True,
    )
