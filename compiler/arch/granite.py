"""Granite 3: Llama whose embedding, scores, residuals and logits are scaled. Granite Team 2024."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from .decoder import forward
from .decoder_config import read_decoder_config

__all__ = ["forward", "read_config", "read_granite_config"]


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "granite"."""
    return read_granite_config(config)


def read_granite_config(config: ConfigReader, **fields: Any) -> ModelSpec:
    """The spec of a Granite. ``fields``: further arguments of `read_decoder_config`."""
    attention_scale, embedding_scale, residual_scale, logits_scaling = (
        config.number(key, default=1.0)
        for key in ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")
    )
    spec = read_decoder_config(
        config,
        bias_keys=("attention_bias", "mlp_bias"),
        **fields,
    )
    return replace(
        spec,
        attention_scale=attention_scale,
        embedding_scale=embedding_scale,
        residual_scale=residual_scale,
        logit_scale=1 / logits_scaling,
    )
