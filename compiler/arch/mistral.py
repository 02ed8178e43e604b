"""Mistral: Llama with a sliding window on every layer. Jiang et al. 2023."""

from __future__ import annotations

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from .decoder import forward
from .decoder_config import read_decoder_config, read_sliding_window

__all__ = ["forward", "read_config"]


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "mistral"."""
    return read_decoder_config(
        config,
        # transformers assumes 8 for an absent key; null means the number of query heads.
        num_kv_heads=config.optional_integer("num_key_value_heads", absent=8),
        windows=read_sliding_window(config, default=4096),
    )
