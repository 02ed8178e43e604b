"""ALBERT: BERT whose layers share their weights, with short rows in its tables, which a projection widens. Lan et al.
2019.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ..formats.config import ConfigReader
from ..ir.graph import Graph
from ..ir.spec import ModelSpec
from ..ir.tasks import ClassifierSpec, EmbeddingSpec
from .decoder_config import read_num_layers
from .encoder import EncoderGraph, HeadLayout, finish
from .encoder_config import read_encoder_config

PREFIX = "albert."
OTHER_HEADS = re.compile(r"(?:pooler|predictions|sop_classifier|classifier)\..*")
HEAD = HeadLayout(dense=[("pooler", "tanh")])
SHARED = "encoder.albert_layer_groups.0.albert_layers.0"


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "albert"."""
    # The weights do not bound the number of layers.
    read_num_layers(config)
    # Published models have one layer that is repeated.
    config.expect("num_hidden_groups", 1)
    config.expect("inner_group_num", 1)
    config.expect("net_structure_type", 0)
    config.expect("num_memory_blocks", 0)
    config.expect("gap_size", 0)
    config.expect("down_scale_factor", 1)
    size = config.integer("embedding_size", default=128)
    types = config.integer("type_vocab_size", default=2)
    spec = read_encoder_config(
        config, default_activation="gelu_new", num_token_types=types, harmless=frozenset({"classifier_dropout_prob"})
    )
    return replace(spec, embedding_size=size)


def encode(spec: ModelSpec, context: int, task: EmbeddingSpec | ClassifierSpec) -> Graph:
    """The graph of one forward pass on a batch of complete texts."""
    encoder, hidden = EncoderGraph(spec, context), spec.hidden_size
    x = encoder.embedding("embeddings.word_embeddings")
    x = encoder.positions(x, "embeddings.position_embeddings", "embeddings.token_type_embeddings")
    x = encoder.linear([("encoder.embedding_hidden_mapping_in", hidden)], encoder.norm("embeddings.LayerNorm", x))
    for layer in range(spec.num_layers):
        x = add_layer(encoder, layer, x)
    return finish(encoder, x, task, HEAD)


def add_layer(encoder: EncoderGraph, layer: int, x: str) -> str:
    here, hidden, attention = f"layers.{layer}.", encoder.spec.hidden_size, f"{SHARED}.attention"
    modules = [(f"{attention}.{name}", hidden) for name in ("query", "key", "value")]
    qkv = encoder.linear(modules, x, f"{attention}.qkv", dtype="activation", here=here)
    projected = encoder.linear([(f"{attention}.dense", hidden)], encoder.attention(layer, qkv), here=here)
    x = encoder.norm(f"{attention}.LayerNorm", encoder.add(projected, x, f"{here}after_attention"), f"{here}attention")
    size, activation = encoder.spec.intermediate_size, encoder.spec.activation
    inner = encoder.linear([(f"{SHARED}.ffn", size)], x, activation=activation, here=here)
    outer = encoder.linear([(f"{SHARED}.ffn_output", hidden)], inner, here=here)
    total = encoder.add(outer, x, f"{here}after_feed_forward")
    return encoder.norm(f"{SHARED}.full_layer_layer_norm", total, f"{here}feed_forward")
