"""OLMo: Llama with LayerNorms that have neither factors nor biases, and limits of queries, keys and values. Groeneveld
et al. 2024.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import read_decoder_config

__all__ = ["forward", "read_config"]

forward = partial(decoder.forward, layout=decoder.DecoderLayout(centered_norms=True))


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "olmo"."""
    limit = config.optional_number("clip_qkv")
    # transformers reads no epsilon.
    eps = config.number("rms_norm_eps", default=1e-5)
    if eps != 1e-5:
        raise config.unsupported("rms_norm_eps", f"'rms_norm_eps' is {eps}; the norms of this family add 1e-05")
    return replace(read_decoder_config(config, bias_keys=("attention_bias",), default_eps=1e-5), qkv_limit=limit)
