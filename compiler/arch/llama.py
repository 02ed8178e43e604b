"""Llama 1 to 3 and models with the same config: grouped-query attention, optional biases, RoPE scaling of Llama 3.1.

Touvron et al. 2023.
"""

from __future__ import annotations

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from .decoder import forward
from .decoder_config import accept_idle_window, read_decoder_config

__all__ = ["forward", "read_config"]


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "llama"."""
    accept_idle_window(config)
    return read_decoder_config(
        config,
        bias_keys=("attention_bias", "mlp_bias"),
    )
