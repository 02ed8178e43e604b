"""MiniCPM: Llama whose embedding, residuals and logits are scaled by rules of its size. Hu et al. 2024."""

from __future__ import annotations

import math
from dataclasses import replace

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from .decoder import forward
from .decoder_config import read_decoder_config, read_num_layers

__all__ = ["forward", "read_config"]


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "minicpm"."""
    # A mixture of experts and sparse attention have keys of their own, which are refused.
    embedding_scale, depth = config.number("scale_emb", default=1.0), config.number("scale_depth", default=1.0)
    base = config.integer("dim_model_base", default=1)
    spec = read_decoder_config(
        config,
        bias_keys=("attention_bias",),
        tied=True,
        default_eps=1e-6,
    )
    return replace(
        spec,
        embedding_scale=embedding_scale,
        residual_scale=depth / math.sqrt(read_num_layers(config)),
        logit_scale=base / spec.hidden_size,
    )
