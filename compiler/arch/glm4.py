"""GLM-4 (0414): norms before and behind each sub-layer, and a partial rotation of interleaved pairs. GLM Team 2024."""

from __future__ import annotations

from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import read_decoder_config

__all__ = ["forward", "read_config"]

LAYOUT = decoder.DecoderLayout(
    fused={"mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")},
    after_attention="post_self_attn_layernorm",
    after_feed_forward="post_mlp_layernorm",
    interleaved=True,
)

forward = partial(decoder.forward, layout=LAYOUT)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "glm4"."""
    return read_decoder_config(
        config,
        num_kv_heads=config.integer("num_key_value_heads", default=2),
        head_dim=config.integer("head_dim", default=128),
        qkv_bias=config.flag("attention_bias", default=True),
        rotates_parts=True,
        default_rotated=0.5,
        default_eps=1.5625e-07,
    )
