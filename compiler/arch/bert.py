"""BERT: LayerNorm after attention and after the feed-forward, with positions from a table. Devlin et al. 2018.

MiniLM, E5, BGE and GTE are BERTs of other sizes. RoBERTa has the same layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..formats.config import ConfigReader
from ..ir.graph import Graph
from ..ir.spec import ClassifierSpec, EmbeddingSpec, ModelSpec
from .encoder import EncoderGraph, HeadLayout, finish
from .encoder_config import read_encoder_config

PREFIX = "bert."
# Heads that a checkpoint may have beside the one that is compiled.
OTHER_HEADS = re.compile(r"(?:pooler|cls|classifier)\..*")
HEAD = HeadLayout(dense=[("pooler.dense", "tanh")])


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "bert"."""
    return read_encoder_config(config, num_token_types=config.integer("type_vocab_size", default=2))


def encode(spec: ModelSpec, context: int, task: EmbeddingSpec | ClassifierSpec, *, head: HeadLayout = HEAD) -> Graph:
    """The graph of one forward pass on a batch of complete texts."""
    encoder = EncoderGraph(spec, context)
    x = encoder.embedding("embeddings.word_embeddings")
    x = encoder.positions(x, "embeddings.position_embeddings", "embeddings.token_type_embeddings")
    x = encoder.norm("embeddings.LayerNorm", x)
    if spec.embedding_size is not None:
        x = encoder.linear([("embeddings_project", spec.hidden_size)], x)
    for layer in range(spec.num_layers):
        x = add_layer(encoder, layer, x)
    return finish(encoder, x, task, head)


def add_layer(
    encoder: EncoderGraph,
    layer: int,
    x: str,
    *,
    names: Sequence[str] = ("query", "key", "value"),
    more: Mapping[str, str] | None = None,
) -> str:
    """``names``: those of the projections of attention; ``more``: further inputs of attention."""
    here, hidden = f"encoder.layer.{layer}", encoder.spec.hidden_size
    attention = f"{here}.attention"
    modules = [(f"{attention}.self.{name}", hidden) for name in names]
    qkv = encoder.linear(modules, x, f"{attention}.self.qkv", dtype="activation")
    attended = encoder.attention(layer, qkv, more=more)
    projected = encoder.linear([(f"{attention}.output.dense", hidden)], attended)
    x = encoder.norm(f"{attention}.output.LayerNorm", encoder.add(projected, x, f"{here}.after_attention"))
    size, activation = encoder.spec.intermediate_size, encoder.spec.activation
    inner = encoder.linear([(f"{here}.intermediate.dense", size)], x, activation=activation)
    outer = encoder.linear([(f"{here}.output.dense", hidden)], inner)
    return encoder.norm(f"{here}.output.LayerNorm", encoder.add(outer, x, f"{here}.after_feed_forward"))
