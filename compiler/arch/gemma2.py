"""Gemma 2: norms before and behind each sub-layer, soft-caps of scores and logits, and windows on every other layer.
Gemma Team 2024.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import even_head_dim, read_decoder_config, read_layer_types, windows_of
from .gemma_numbers import LAYOUT, read_gemma_numbers

__all__ = ["forward", "read_config"]

forward = partial(decoder.forward, layout=LAYOUT)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "gemma2"."""
    config.expect("use_bidirectional_attention", False)
    kinds = read_layer_types(config, pattern=lambda layer: layer % 2 == 1)
    numbers = read_gemma_numbers(config, attention_cap=50.0, logit_cap=30.0)
    window = config.optional_integer("sliding_window", absent=4096)
    spec = read_decoder_config(
        config,
        num_kv_heads=config.integer("num_key_value_heads"),
        head_dim=even_head_dim(config, config.integer("head_dim", default=256)),
        activation=numbers["activation"],
        bias_keys=("attention_bias",),
        windows=windows_of(config, kinds, window),
        tied=True,
        default_eps=1e-6,
    )
    return replace(spec, **numbers)
