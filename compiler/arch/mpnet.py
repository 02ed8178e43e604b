"""MPNet: BERT whose scores of attention have biases by distance, in buckets that all layers share. Song et al. 2020."""

from __future__ import annotations

import re
from dataclasses import replace

from ..formats.config import ConfigReader
from ..formats.distance_tensors import BIAS
from ..ir.graph import Graph
from ..ir.spec import DistanceSpec, ModelSpec
from ..ir.tasks import ClassifierSpec, EmbeddingSpec
from .encoder import EncoderGraph, HeadLayout, finish
from .encoder_config import read_encoder_config

PREFIX = "mpnet."
OTHER_HEADS = re.compile(r"(?:pooler|lm_head|classifier)\..*")
HEAD = HeadLayout(classifier="classifier.out_proj", dense=[("classifier.dense", "tanh")])
# Of distances; all from 128 on are in the last one of their direction.
BUCKETS, MAX_DISTANCE = 32, 128
# The row of a text's first token in the table of positions, whatever the id of padding is.
FIRST_POSITION = 2


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "mpnet"."""
    # transformers has this number of buckets, whatever the key says.
    config.expect("relative_attention_num_buckets", BUCKETS)
    spec = read_encoder_config(config, first_position=FIRST_POSITION)
    return replace(spec, distances=DistanceSpec(BUCKETS, MAX_DISTANCE))


def encode(spec: ModelSpec, context: int, task: EmbeddingSpec | ClassifierSpec) -> Graph:
    """The graph of one forward pass on a batch of complete texts."""
    encoder, hidden = EncoderGraph(spec, context), spec.hidden_size
    x = encoder.embedding("embeddings.word_embeddings")
    x = encoder.norm("embeddings.LayerNorm", encoder.positions(x, "embeddings.position_embeddings", None))
    bias = encoder.vector(BIAS, spec.num_heads * spec.num_distances)
    for layer in range(spec.num_layers):
        here = f"encoder.layer.{layer}"
        modules = [(f"{here}.attention.attn.{name}", hidden) for name in "qkv"]
        qkv = encoder.linear(modules, x, f"{here}.attention.attn.qkv", dtype="activation")
        attended = encoder.attention(layer, qkv, more={"distance_bias": bias})
        projected = encoder.linear([(f"{here}.attention.attn.o", hidden)], attended)
        x = encoder.norm(f"{here}.attention.LayerNorm", encoder.add(projected, x, f"{here}.after_attention"))
        inner = encoder.linear([(f"{here}.intermediate.dense", spec.intermediate_size)], x, activation=spec.activation)
        outer = encoder.linear([(f"{here}.output.dense", hidden)], inner)
        x = encoder.norm(f"{here}.output.LayerNorm", encoder.add(outer, x, f"{here}.after_feed_forward"))
    return finish(encoder, x, task, HEAD)
