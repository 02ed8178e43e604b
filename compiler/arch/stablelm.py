"""StableLM: LayerNorms with a bias, and a rotation of a part of each head. Bellagente et al. 2024."""

from __future__ import annotations

from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import even_head_dim, read_decoder_config

__all__ = ["forward", "read_config"]

forward = partial(decoder.forward, layout=decoder.DecoderLayout(centered_norms=True, norm_bias=True))


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "stablelm"."""
    # The 12B model has other norms for each head, and attention and feed-forward side by side.
    config.expect("qk_layernorm", False)
    config.expect("use_parallel_residual", False)
    return read_decoder_config(
        config,
        num_kv_heads=config.integer("num_key_value_heads", default=32),
        head_dim=even_head_dim(config, None),
        qkv_bias=config.flag("use_qkv_bias", default=False),
        rotates_parts=True,
        default_rotated=0.25,
        default_eps=1e-5,
        eps_key="layer_norm_eps",
        harmless=frozenset({"hidden_dropout"}),
    )
