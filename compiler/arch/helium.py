"""Helium: Llama whose heads are rotated by interleaved pairs. Kyutai 2025."""

from __future__ import annotations

from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import even_head_dim, read_decoder_config

__all__ = ["forward", "read_config"]

forward = partial(decoder.forward, layout=decoder.DecoderLayout(interleaved=True))


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "helium"."""
    head_dim = even_head_dim(config, config.integer("head_dim", default=128))
    return read_decoder_config(
        config,
        num_kv_heads=config.integer("num_key_value_heads"),
        head_dim=head_dim,
        qkv_bias=config.flag("attention_bias", default=False),
        bias_keys=("mlp_bias",),
        default_theta=100_000.0,
        default_eps=1e-8,
    )
