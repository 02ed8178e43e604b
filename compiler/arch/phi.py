"""Phi-1, Phi-1.5 and Phi-2: attention and a feed-forward without a gate side by side, LayerNorms, biases on all
projections and on the head, and a partial rotation. Gunasekar et al. 2023.
"""

from __future__ import annotations

from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import even_head_dim, read_activation, read_decoder_config

__all__ = ["forward", "read_config"]

LAYOUT = decoder.DecoderLayout(
    fused={
        "self_attn.dense": ("self_attn.o_proj",), "mlp.fc1": ("mlp.up_proj",), "mlp.fc2": ("mlp.down_proj",),
    },
    centered_norms=True,
    norm_bias=True,
    parallel=True,
    gated=False,
    final_norm="model.final_layernorm",
    head_bias=True,
)  # fmt: skip

forward = partial(decoder.forward, layout=LAYOUT)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "phi"."""
    # Norms of queries and keys are not published.
    config.expect("qk_layernorm", False)
    head_dim = even_head_dim(config, None)
    config.expect("head_dim", head_dim, None)
    return read_decoder_config(
        config,
        head_dim=head_dim,
        activation=read_activation(config, "hidden_act", "gelu_new"),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        rotates_parts=True,
        default_rotated=0.5,
        default_eps=1e-5,
        eps_key="layer_norm_eps",
    )
