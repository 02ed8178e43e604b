"""Granite Swash: Granite 3 with windows on most layers, a sink of every head, and a base of the rotation of each layer.
Granite Team 2026.
"""

from __future__ import annotations

from dataclasses import replace

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from .decoder import forward
from .decoder_config import read_layer_types, windows_of
from .granite import read_granite_config
from .rope_config import with_layer_thetas

__all__ = ["forward", "read_config"]


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "granite_swa"."""
    kinds = read_layer_types(config, pattern=lambda layer: layer % 4 == 0)
    window = config.optional_integer("sliding_window", absent=128)
    thetas = config.optional_numbers("layer_rope_theta")
    spec = read_granite_config(config, windows=windows_of(config, kinds, window), tied=True, default_eps=1e-5)
    return with_layer_thetas(config, replace(spec, sinks=True), thetas)
