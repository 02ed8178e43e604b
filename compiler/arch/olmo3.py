"""OLMo 3: OLMo 2 with windows on three of four layers; YaRN stretches the rotation of the others only. OLMo Team
2025.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import even_head_dim, read_decoder_config, read_layer_types, windows_of
from .olmo2 import LAYOUT
from .rope_config import RopeSizes, read_layer_ropes

__all__ = ["forward", "read_config"]

THETA = 500_000.0

forward = partial(decoder.forward, layout=LAYOUT)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "olmo3"."""
    kinds = read_layer_types(config, pattern=lambda layer: (layer + 1) % 4 == 0)
    head_dim = even_head_dim(config, config.optional_integer("head_dim"))
    sizes = RopeSizes(head_dim, config.integer("max_position_embeddings"), default_theta=THETA)
    local = replace(sizes, default_theta=config.optional_number("rope_theta") or THETA)
    return read_decoder_config(
        config,
        head_dim=head_dim,
        bias_keys=("attention_bias",),
        qk_norm=True,
        windows=windows_of(config, kinds, config.optional_integer("sliding_window", absent=4096)),
        ropes=read_layer_ropes(config, sizes, local),
        default_eps=1e-5,
    )
