"""Gemma 4 12B, the text of a model without encoders of images and sound: the layers of the other dense ones. Gemma Team
2026.
"""

from __future__ import annotations

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import gemma4_text
from .gemma4_text import forward

__all__ = ["forward", "read_config"]

DEFAULTS = {
    **gemma4_text.DEFAULTS,
    "max_position_embeddings": 262_144,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
}


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "gemma4_unified_text"."""
    return gemma4_text.read_config(config, DEFAULTS)
