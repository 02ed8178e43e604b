"""Nemotron: LayerNorms whose factors are stored without 1, a feed-forward with the square of ReLU and no gate, and a
partial rotation. Parmar et al. 2024; Minitron and Nemotron-Mini are smaller ones.
"""

from __future__ import annotations

from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import read_activation, read_decoder_config

__all__ = ["forward", "read_config"]

LAYOUT = decoder.DecoderLayout(centered_norms=True, norm_bias=True, norm_offset=1.0, gated=False)

forward = partial(decoder.forward, layout=LAYOUT)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "nemotron"."""
    # The name of 'partial_rotary_factor' in the first releases.
    config = config.renamed({"rope_percent": "partial_rotary_factor"})
    return read_decoder_config(
        config,
        activation=read_activation(config, "hidden_act", "relu2"),
        bias_keys=("attention_bias", "mlp_bias"),
        rotates_parts=True,
        default_rotated=0.5,
        default_eps=1e-5,
        eps_key="norm_eps",
    )
