"""OLMo 2: norms behind each sub-layer instead of before it, and norms over all heads of queries and keys. OLMo Team
2024.
"""

from __future__ import annotations

from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import read_decoder_config

__all__ = ["LAYOUT", "forward", "read_config"]

LAYOUT = decoder.DecoderLayout(
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_feed_forward=None,
    after_feed_forward="post_feedforward_layernorm",
    wide_qk_norm=True,
)

forward = partial(decoder.forward, layout=LAYOUT)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "olmo2"."""
    return read_decoder_config(
        config,
        bias_keys=("attention_bias",),
        qk_norm=True,
        default_eps=1e-5,
    )
