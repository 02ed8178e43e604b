"""Models that see pictures, by the model_type of the complete model: each module reads the tower's configuration and
computes features.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from ...formats.config import ConfigReader
    from ...ir.graph import Graph
    from ...ir.spec import ModelSpec, VisionSpec

# The module of each model_type.
TOWERS = {
    "gemma3": "gemma3",
    "gemma4": "gemma4",
    "gemma4_unified": "gemma4_unified",
    "idefics3": "idefics3",
    "lfm2_vl": "lfm2_vl",
    "qwen3_5": "qwen_vl",
    "qwen3_vl": "qwen_vl",
    "smolvlm": "idefics3",
}


class Tower(Protocol):
    """The interface of a module. ``PARTS``: the modules of tower and projector on disk, without "model." in front, and
    the prefixes that their tensors get.
    """

    PARTS: Mapping[str, str]

    def read_config(self, config: ConfigReader) -> VisionSpec:
        """The spec of a config.json. Raises CheckpointError, and UnsupportedModel if a key needs other mathematics."""

    def see(self, spec: ModelSpec, taps: int) -> Graph:
        """The graph that makes "features" (F, E) of patches, each of which mixes ``taps`` positions; see
        `ops/images.py`.
        """


def tower_of(model_type: str) -> Tower:
    """The module of a model_type of TOWERS."""
    return cast(Tower, import_module(f".{TOWERS[model_type]}", __name__))
