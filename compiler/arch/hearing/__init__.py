"""Models that hear, by the model_type of the complete model: each module reads the tower's configuration and computes
features of frames of sound.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from ...formats.config import ConfigReader
    from ...ir.graph import Graph
    from ...ir.spec import HearingSpec, ModelSpec

# The module of each model_type.
EARS = {"gemma4": "gemma4", "gemma4_unified": "gemma4_unified"}


class Ear(Protocol):
    """The interface of a module. ``PARTS``: the modules of tower and projector on disk, without "model." in front, and
    the prefixes that their tensors get.
    """

    PARTS: Mapping[str, str]

    def read_config(self, config: ConfigReader) -> HearingSpec:
        """The spec of a config.json with a section "audio_config". Raises CheckpointError, and UnsupportedModel if a
        key needs other mathematics.
        """

    def hear(self, spec: ModelSpec) -> Graph:
        """The graph that makes "rows" (S, E), the features, of "frames" (S, elements)."""


def ear_of(model_type: str) -> Ear:
    """The module of a model_type of EARS."""
    return cast(Ear, import_module(f".{EARS[model_type]}", __name__))
