"""DistilBERT: BERT with half its layers, without types of tokens. Sanh et al. 2019."""

from __future__ import annotations

import re

from ..formats.config import ConfigReader
from ..ir.graph import Graph
from ..ir.spec import ModelSpec
from ..ir.tasks import ClassifierSpec, EmbeddingSpec
from .encoder import EncoderGraph, HeadLayout, finish
from .encoder_config import read_encoder_config

PREFIX = "distilbert."
OTHER_HEADS = re.compile(r"(?:vocab_transform|vocab_layer_norm|vocab_projector|pre_classifier|classifier)\..*")
HEAD = HeadLayout(dense=[("pre_classifier", "relu")])
NAMES = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim",
}


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "distilbert"."""
    # The table of sinusoidal positions is stored like a trained one.
    config.ignore("sinusoidal_pos_embds")
    harmless = frozenset({"attention_dropout", "dropout", "qa_dropout", "seq_classif_dropout"})
    return read_encoder_config(config, names=NAMES, activation_key="activation", harmless=harmless)


def encode(spec: ModelSpec, context: int, task: EmbeddingSpec | ClassifierSpec) -> Graph:
    """The graph of one forward pass on a batch of complete texts."""
    encoder, hidden = EncoderGraph(spec, context), spec.hidden_size
    x = encoder.embedding("embeddings.word_embeddings")
    x = encoder.norm("embeddings.LayerNorm", encoder.positions(x, "embeddings.position_embeddings", None))
    for layer in range(spec.num_layers):
        here = f"transformer.layer.{layer}"
        modules = [(f"{here}.attention.{name}_lin", hidden) for name in "qkv"]
        qkv = encoder.linear(modules, x, f"{here}.attention.qkv_lin", dtype="activation")
        projected = encoder.linear([(f"{here}.attention.out_lin", hidden)], encoder.attention(layer, qkv))
        x = encoder.norm(f"{here}.sa_layer_norm", encoder.add(projected, x, f"{here}.after_attention"))
        inner = encoder.linear([(f"{here}.ffn.lin1", spec.intermediate_size)], x, activation=spec.activation)
        outer = encoder.linear([(f"{here}.ffn.lin2", hidden)], inner)
        x = encoder.norm(f"{here}.output_layer_norm", encoder.add(outer, x, f"{here}.after_feed_forward"))
    return finish(encoder, x, task, HEAD)
