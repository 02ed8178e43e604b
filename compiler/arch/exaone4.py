"""EXAONE 4: norms behind each sub-layer; if the model has windows, the layers without one do not rotate. LG AI Research
2025.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import read_decoder_config, read_layer_types, windows_of

__all__ = ["forward", "read_config"]

LAYOUT = decoder.DecoderLayout(
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_feed_forward=None,
    after_feed_forward="post_feedforward_layernorm",
)

forward = partial(decoder.forward, layout=LAYOUT)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "exaone4"."""
    window = config.optional_integer("sliding_window", absent=4096)
    if config.has("layer_types"):
        # Then it is a description, such as "LLLG".
        config.ignore("sliding_window_pattern")
        every = 1
    else:
        every = config.integer("sliding_window_pattern", default=4)
    kinds = read_layer_types(config, pattern=lambda layer: window is None or (layer + 1) % every == 0)
    spec = read_decoder_config(
        config,
        num_kv_heads=config.integer("num_key_value_heads"),
        qk_norm=True,
        windows=windows_of(config, kinds, window),
        default_eps=1e-5,
    )
    if window is None:
        return spec
    return replace(spec, unrotated=tuple(layer for layer, kind in enumerate(kinds) if kind == "full_attention"))
