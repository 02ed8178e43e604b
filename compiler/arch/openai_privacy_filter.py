"""OpenAI's privacy filter: gpt-oss whose tokens see those on both sides, as many on every layer; it labels the tokens
of names, addresses, numbers and secrets. OpenAI 2026.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import read_num_layers
from .experts import ExpertNames
from .gpt_oss import read_gpt_oss

__all__ = ["forward", "read_config"]

LAYOUT = decoder.DecoderLayout(
    interleaved=True,
    experts=ExpertNames(router="mlp.router", gate_up=("mlp.experts.gate_up_proj",), down=("mlp.experts.down_proj",)),
)

forward = partial(decoder.forward, layout=LAYOUT)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "openai_privacy_filter"."""
    # So many tokens on each side, and the token itself.
    window = config.integer("sliding_window", default=128) + 1
    spec = read_gpt_oss(config, (window,) * read_num_layers(config), harmless=frozenset({"classifier_dropout"}))
    return replace(spec, causal=False)
