"""Shared by Gemma 2 and Gemma 3: the layout of their layers, and the numbers that scale and cap their values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..formats.config import ConfigReader
from .decoder import DecoderLayout
from .decoder_config import read_activation

LAYOUT = DecoderLayout(
    after_attention="post_attention_layernorm",
    before_feed_forward="pre_feedforward_layernorm",
    after_feed_forward="post_feedforward_layernorm",
    norm_offset=1.0,
)


def read_gemma_numbers(config: ConfigReader, *, attention_cap: float | None, logit_cap: float | None) -> dict[str, Any]:
    """The fields of a ModelSpec that Gemma has and plain decoders have not. The caps are for absent keys."""
    # transformers does not read it in these models.
    config.ignore("hidden_act")
    return {
        "activation": read_activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        "embedding_scale": embedding_scale(config),
        "attention_scale": config.number("query_pre_attn_scalar", default=256) ** -0.5,
        "attention_softcap": _cap(config, "attn_logit_softcapping", attention_cap),
        "logit_softcap": _cap(config, "final_logit_softcapping", logit_cap),
    }


def embedding_scale(config: ConfigReader) -> float:
    """sqrt(hidden_size), rounded to the dtype that the model was trained with."""
    scale = math.sqrt(config.integer("hidden_size"))
    dtype = config.optional_text("dtype") or config.optional_text("torch_dtype")
    if dtype == "float16":
        return float(np.float16(scale))
    return as_bfloat16(scale) if dtype == "bfloat16" else scale


def as_bfloat16(value: float) -> float:
    """The nearest bfloat16, which is the upper half of a float32; of two, the even one."""
    bits = int(np.float32(value).view(np.uint32))
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(np.uint32(rounded).view(np.float32))


def _cap(config: ConfigReader, key: str, default: float | None) -> float | None:
    return config.optional_number(key, absent=default)
