"""Llama 1 to 3 and models with the same config: grouped-query attention, optional biases, RoPE scaling of Llama 3.1.

Touvron et al. 2023.
"""

from __future__ import annotations

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from .decoder import forward
from .decoder_config import accept_idle_window, read_activation, read_decoder_config

__all__ = ["forward", "read_config"]


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "llama"."""
    accept_idle_window(config)
    # One flag applies to all four projections of the attention.
    attention_bias = config.flag("attention_bias", default=False)
    return read_decoder_config(
        config,
        activation=read_activation(config, "hidden_act", "silu"),
        num_kv_heads=config.optional_integer("num_key_value_heads") or config.integer("num_attention_heads"),
        head_dim=config.optional_integer("head_dim"),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=config.flag("mlp_bias", default=False),
    )
