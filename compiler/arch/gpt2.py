"""GPT-2: LayerNorms, biases on all projections, positions from a table, and a feed-forward without a gate. Radford et
al. 2019.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import even_head_dim, read_activation, read_decoder_config

__all__ = ["forward", "read_config"]

LAYOUT = decoder.DecoderLayout(
    fused={"self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")},
    centered_norms=True,
    norm_bias=True,
    gated=False,
    positions="model.embed_positions",
)
NAMES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
}

forward = partial(decoder.forward, layout=LAYOUT)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "gpt2"."""
    config = config.renamed(NAMES)
    config.expect("scale_attn_weights", True)
    config.expect("scale_attn_by_inverse_layer_idx", False)
    positions = config.integer("max_position_embeddings")
    # The name of old files, which transformers does not read.
    config.expect("n_ctx", positions)
    # The dtype of scores in training.
    config.ignore("reorder_and_upcast_attn")
    heads = config.integer("num_attention_heads")
    activation = read_activation(config, "activation_function", "gelu_new")
    inner = config.optional_integer("n_inner") or 4 * config.integer("hidden_size")
    # transformers does not read these names.
    config.expect("intermediate_size", inner)
    config.expect("num_key_value_heads", heads)
    spec = read_decoder_config(
        config.with_defaults({"intermediate_size": inner}),
        num_kv_heads=heads,
        head_dim=even_head_dim(config, None),
        activation=activation,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        tied=True,
        default_eps=1e-5,
        eps_key="layer_norm_epsilon",
    )
    return replace(spec, unrotated=tuple(range(spec.num_layers)))
