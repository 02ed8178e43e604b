"""Gemma 3: Gemma 2 with norms of queries and keys instead of soft-caps, five layers with windows to one without, and
another rotation for those with windows. Gemma Team 2025. EmbeddingGemma is one whose tokens see those after them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import even_head_dim, read_decoder_config, read_layer_types, windows_of
from .gemma_numbers import LAYOUT, read_gemma_numbers
from .rope_config import RopeSizes, read_layer_ropes

__all__ = ["forward", "read_config"]

GLOBAL_THETA, LOCAL_THETA = 1_000_000.0, 10_000.0

# Published configurations omit keys whose values are transformers' defaults.
DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "bos_token_id": 2,
    "eos_token_id": 1,
}

forward = partial(decoder.forward, layout=LAYOUT)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "gemma3_text"."""
    config = config.with_defaults(DEFAULTS)
    every = config.integer("sliding_window_pattern", default=6)
    config.ignore("_sliding_window_pattern")
    kinds = read_layer_types(config, pattern=lambda layer: (layer + 1) % every == 0)
    head_dim = even_head_dim(config, config.integer("head_dim", default=256))
    numbers = read_gemma_numbers(config, attention_cap=None, logit_cap=None)
    context = config.integer("max_position_embeddings")
    window = config.optional_integer("sliding_window", absent=4096)
    bidirectional = config.optional_flag("use_bidirectional_attention") or False
    if bidirectional and window is not None:
        # Half of the tokens are on each side, and the token itself is one more.
        window = window // 2 + 1
    spec = read_decoder_config(
        config,
        num_kv_heads=config.integer("num_key_value_heads"),
        head_dim=head_dim,
        activation=numbers["activation"],
        bias_keys=("attention_bias",),
        qk_norm=True,
        windows=windows_of(config, kinds, window),
        ropes=read_layer_ropes(
            config,
            RopeSizes(head_dim, context, default_theta=GLOBAL_THETA),
            RopeSizes(head_dim, context, default_theta=config.optional_number("rope_local_base_freq") or LOCAL_THETA),
        ),
        tied=True,
        default_eps=1e-6,
    )
    return replace(spec, causal=spec.causal and not bidirectional, **numbers)
