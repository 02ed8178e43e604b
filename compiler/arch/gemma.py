"""Gemma 1: Llama whose norms are stored without 1, with an embedding that is scaled. Gemma Team 2024."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import even_head_dim, read_activation, read_decoder_config
from .gemma_numbers import embedding_scale

__all__ = ["forward", "read_config"]

forward = partial(decoder.forward, layout=decoder.DecoderLayout(norm_offset=1.0))


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "gemma"."""
    config.expect("use_bidirectional_attention", None, False)
    scale = embedding_scale(config)
    # The first releases name the exact form, and were trained with the approximation, as 'hidden_activation' of later
    # ones says; transformers does not read that key.
    activation = read_activation(config, "hidden_act", "gelu_pytorch_tanh")
    config.expect("hidden_activation", None, "gelu_pytorch_tanh")
    spec = read_decoder_config(
        config,
        num_kv_heads=config.integer("num_key_value_heads"),
        head_dim=even_head_dim(config, config.integer("head_dim", default=256)),
        activation="gelu_tanh" if activation == "gelu" else activation,
        bias_keys=("attention_bias",),
        tied=True,
        default_eps=1e-6,
    )
    return replace(spec, embedding_scale=scale)
