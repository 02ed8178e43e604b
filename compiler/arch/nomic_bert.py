"""Nomic BERT: BERT with rotated heads instead of a table of positions, and a gated feed-forward, without biases.
Nussbaum et al. 2024.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..formats.config import ConfigReader
from ..ir.graph import Graph
from ..ir.spec import ModelSpec
from ..ir.tasks import ClassifierSpec, EmbeddingSpec
from .decoder_config import even_head_dim
from .encoder import EncoderGraph, HeadLayout, finish
from .encoder_config import read_encoder_config
from .rope_config import RopeSizes, read_rope

PREFIX = "nomic_bert."
OTHER_HEADS = re.compile(r"(?:pooler|cls|classifier)\..*")
HEAD = HeadLayout(dense=[("pooler.dense", "tanh")])
# The names of the model's own code, in which it was published, and those of transformers.
NAMES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
    "activation_function": "hidden_act",
}
# What that code can compute besides, in the only form that is compiled.
FIXED: Mapping[str, object] = {
    "prenorm": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "rotary_emb_fraction": 1,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "causal": False,
    "use_rms_norm": False,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "parallel_block": False,
    "hidden_act": "swiglu",
}
# Keys of that code that have no effect in a trained model of this form.
HARMLESS = frozenset(
    {
        "dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "last_layer_subset",
        "max_trained_positions", "pad_vocab_size_multiple", "pooler_activation", "reorder_and_upcast_attn",
        "use_flash_attn", "use_xentropy",
    }
)  # fmt: skip


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "nomic_bert", in the form of transformers or in that of the model's own
    code.
    """
    activation, theta = None, 1000.0
    if config.has("n_embd"):
        config = config.renamed(NAMES)
        for key, value in FIXED.items():
            config.expect(key, value)
        activation, theta = "silu", 10_000.0
    head_dim = even_head_dim(config, config.optional_integer("head_dim"))
    if head_dim * config.integer("num_attention_heads") != config.integer("hidden_size"):
        raise config.unsupported("head_dim", f"'head_dim' is {head_dim}, but its heads do not add up to 'hidden_size'")
    positions = config.integer("max_position_embeddings")
    return read_encoder_config(
        config,
        activation=activation,
        default_activation="silu",
        num_token_types=config.integer("type_vocab_size", default=2),
        rope=read_rope(config, RopeSizes(head_dim, positions, default_theta=theta)),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        harmless=HARMLESS,
    )


def encode(spec: ModelSpec, context: int, task: EmbeddingSpec | ClassifierSpec) -> Graph:
    """The graph of one forward pass on a batch of complete texts."""
    encoder, hidden = EncoderGraph(spec, context), spec.hidden_size
    x = encoder.embedding("embeddings.word_embeddings")
    x = encoder.norm("emb_ln", encoder.positions(x, None, "embeddings.token_type_embeddings"))
    for layer in range(spec.num_layers):
        here = f"encoder.layers.{layer}"
        qkv = encoder.linear([(f"{here}.attn.Wqkv", 3 * hidden)], x, bias=False, dtype="activation")
        projected = encoder.linear([(f"{here}.attn.out_proj", hidden)], encoder.attention(layer, qkv), bias=False)
        x = encoder.norm(f"{here}.norm1", encoder.add(projected, x, f"{here}.after_attention"))
        gated = encoder.gated(f"{here}.mlp.fc12", f"{here}.mlp.fc11", x, bias=False)
        down = encoder.linear([(f"{here}.mlp.fc2", hidden)], gated, bias=False)
        x = encoder.norm(f"{here}.norm2", encoder.add(down, x, f"{here}.after_feed_forward"))
    return finish(encoder, x, task, HEAD)
