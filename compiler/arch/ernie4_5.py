"""ERNIE 4.5 without experts: Llama with a rotation of interleaved pairs. Baidu ERNIE Team 2025."""

from __future__ import annotations

from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import read_decoder_config

__all__ = ["forward", "read_config"]

forward = partial(decoder.forward, layout=decoder.DecoderLayout(interleaved=True))


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "ernie4_5"."""
    # One flag applies to all projections.
    use_bias = config.flag("use_bias", default=False)
    return read_decoder_config(
        config,
        head_dim=config.optional_integer("head_dim", absent=128),
        qkv_bias=use_bias,
        output_bias=use_bias,
        mlp_bias=use_bias,
        default_theta=500_000.0,
        tied=True,
        default_eps=1e-5,
    )
