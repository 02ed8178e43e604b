"""Granite 3 with experts in place of every feed-forward. Granite Team 2024."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .expert_config import HARMLESS, read_experts
from .experts import ExpertNames
from .granite import read_granite_config

__all__ = ["forward", "read_config"]

LAYOUT = decoder.DecoderLayout(
    experts=ExpertNames(
        router="block_sparse_moe.router.layer",
        gate_up=("block_sparse_moe.input_linear.weight",),
        down=("block_sparse_moe.output_linear.weight",),
    )
)

forward = partial(decoder.forward, layout=LAYOUT)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "granitemoe"."""
    experts = read_experts(config, "num_local_experts", router="softmax_chosen")
    return replace(read_granite_config(config, harmless=HARMLESS), experts=experts)
