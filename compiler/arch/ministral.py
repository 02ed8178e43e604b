"""Ministral: Mistral with windows on the layers that 'layer_types' selects. Mistral AI 2024."""

from __future__ import annotations

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from .decoder import forward
from .decoder_config import read_decoder_config, read_layer_types, windows_of

__all__ = ["forward", "read_config"]


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "ministral"."""
    window = config.optional_integer("sliding_window", absent=4096)
    kinds = read_layer_types(config, pattern=lambda _: window is None)
    return read_decoder_config(
        config,
        windows=windows_of(config, kinds, window),
        default_eps=1e-6,
    )
