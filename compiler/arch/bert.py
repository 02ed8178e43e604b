"""BERT: LayerNorm after attention and after the feed-forward, with positions from a table. Devlin et al. 2018.

MiniLM, E5, BGE and GTE are BERTs of other sizes. RoBERTa has the same layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..formats.config import ConfigReader
from ..ir.graph import Graph
from ..ir.spec import ModelSpec
from ..ir.tasks import ClassifierSpec, EmbeddingSpec
from .encoder import EncoderGraph, HeadLayout, finish
from .encoder_config import read_encoder_config

PREFIX = "bert."
# Heads that a checkpoint may have beside the one that is compiled.
OTHER_HEADS = re.compile(r"(?:pooler|cls|classifier)\..*")
HEAD = HeadLayout(dense=[("pooler.dense", "tanh")])


@dataclass(frozen=True, slots=True)
class LayerNames:
    """The names of a layer's modules below those of all ``layers``. ``heads``: the projections of queries, keys and
    values, or one of all, and ``joined`` that of several as one.
    """

    layers: str
    heads: Sequence[str]
    joined: str
    attended: str
    attention_norm: str
    inner: str
    outer: str
    norm: str


NAMES = LayerNames(
    layers="encoder.layer",
    heads=["attention.self.query", "attention.self.key", "attention.self.value"],
    joined="attention.self.qkv",
    attended="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    inner="intermediate.dense",
    outer="output.dense",
    norm="output.LayerNorm",
)


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
    encoder: EncoderGraph, layer: int, x: str, names: LayerNames = NAMES, more: Mapping[str, str] | None = None
) -> str:
    """A layer with a norm behind each half. ``more``: further inputs of attention."""
    here, hidden = f"{names.layers}.{layer}", encoder.spec.hidden_size
    rows = 3 * hidden // len(names.heads)
    joined = f"{here}.{names.joined}" if names.joined else ""
    qkv = encoder.linear([(f"{here}.{name}", rows) for name in names.heads], x, joined, dtype="activation")
    projected = encoder.linear([(f"{here}.{names.attended}", hidden)], encoder.attention(layer, qkv, more=more))
    x = encoder.norm(f"{here}.{names.attention_norm}", encoder.add(projected, x, f"{here}.after_attention"))
    size, activation = encoder.spec.intermediate_size, encoder.spec.activation
    inner = encoder.linear([(f"{here}.{names.inner}", size)], x, activation=activation)
    outer = encoder.linear([(f"{here}.{names.outer}", hidden)], inner)
    return encoder.norm(f"{here}.{names.norm}", encoder.add(outer, x, f"{here}.after_feed_forward"))
