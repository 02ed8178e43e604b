"""Command R7B: attention and feed-forward side by side, LayerNorms without bias, and a rotation of interleaved pairs on
the layers that have a window; the others do not rotate. Cohere 2024.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import even_head_dim, read_decoder_config, read_layer_types, windows_of

__all__ = ["forward", "read_config"]

LAYOUT = decoder.DecoderLayout(centered_norms=True, parallel=True, interleaved=True)

forward = partial(decoder.forward, layout=LAYOUT)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "cohere2"."""
    every = config.integer("sliding_window_pattern", default=4)
    # Published configs contain these keys although every Command R7B has the same values.
    config.expect("layer_switch", every)
    config.expect("order_of_interleaved_layers", "local_attn_first")
    config.expect("position_embedding_type", "rope_gptj")
    config.expect("rotary_pct", 1)
    config.expect("use_gated_activation", True)
    config.expect("use_parallel_block", True)
    config.expect("use_qk_norm", False)
    tied = config.flag("tie_word_embeddings", default=True)
    config.expect("use_embedding_sharing", tied)
    # The parts into which training split the embedding.
    config.ignore("use_parallel_embedding")
    head_dim = even_head_dim(config, None)
    # transformers does not read it.
    config.expect("head_dim", head_dim, None)
    kinds = read_layer_types(config, pattern=lambda layer: (layer + 1) % every == 0)
    window = config.optional_integer("sliding_window", absent=4096)
    logit_scale = config.number("logit_scale", default=0.0625)
    spec = read_decoder_config(
        config,
        head_dim=head_dim,
        bias_keys=("attention_bias",),
        windows=windows_of(config, kinds, window),
        tied=True,
        default_eps=1e-5,
        eps_key="layer_norm_eps",
    )
    unrotated = tuple(layer for layer, kind in enumerate(kinds) if kind == "full_attention")
    return replace(spec, logit_scale=logit_scale, unrotated=unrotated)
