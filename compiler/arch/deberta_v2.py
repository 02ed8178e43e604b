"""DeBERTa 2 and 3: BERT whose scores of attention also depend on the distance of a key, by the row's query and by the
key. He et al. 2021.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..formats.config import ConfigReader
from ..formats.distance_tensors import HEADS, ROWS
from ..ir.graph import Graph
from ..ir.spec import ConvolutionSpec, DistanceSpec, ModelSpec
from ..ir.tasks import ClassifierSpec, EmbeddingSpec
from . import bert
from .decoder_config import read_activation
from .encoder import EncoderGraph, HeadLayout, finish
from .encoder_config import read_encoder_config

PREFIX = "deberta."
OTHER_HEADS = re.compile(r"(?:pooler|cls|lm_predictions|mask_predictions|classifier)\..*")
HEAD = HeadLayout(dense=[("pooler.dense", "gelu")])
NAMES = replace(bert.NAMES, heads=[f"attention.self.{name}_proj" for name in ("query", "key", "value")])
HARMLESS = frozenset({"cls_dropout", "legacy", "pooler_dropout", "pos_dropout", "conv_act"})
# The parts of a score: of both texts, and one of each text with the distance.
TERMS = 3
PLAIN: Mapping[str, Sequence[object]] = {
    "relative_attention": (True,),
    "pos_att_type": ("p2c|c2p", "c2p|p2c", ["p2c", "c2p"], ["c2p", "p2c"]),
    "position_biased_input": (False,),
}


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "deberta-v2"."""
    # transformers' defaults of these keys are other models.
    for key, values in PLAIN.items():
        if not config.has(key):
            raise config.unsupported(key, f"{key!r} is missing; supported: {values[0]!r}")
        config.expect(key, *values)
    # They say which tensors the distances have.
    config.expect("share_att_key", True, False)
    config.expect("norm_rel_ebd", "layer_norm", "none")
    config.expect("pooler_hidden_act", "gelu")
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    config.expect("attention_head_size", hidden // heads, None)
    config.expect("pooler_hidden_size", hidden, None)
    config.expect("embedding_size", hidden, None)
    positions, span = config.integer("max_position_embeddings"), config.integer("position_buckets", minimum=4)
    farthest = config.integer("max_relative_positions", minimum=-1, default=-1)
    if farthest <= 0:
        farthest = positions
    # Distances beyond half of the rows are told apart by their logarithms, up to this one.
    if farthest <= span // 2 + 1:
        key = "max_relative_positions" if farthest != positions else "max_position_embeddings"
        raise config.contradiction(key, f"{key!r} is {farthest}, not above half of 'position_buckets', {span}")
    convolution = _read_convolution(config)
    spec = read_encoder_config(
        config,
        default_eps=1e-7,
        num_token_types=config.integer("type_vocab_size", minimum=0, default=0),
        harmless=HARMLESS,
    )
    distances = DistanceSpec(2 * span, farthest)
    scale = (TERMS * (hidden // heads)) ** -0.5
    return replace(spec, attention_scale=scale, distances=distances, convolution=convolution)


def _read_convolution(config: ConfigReader) -> ConvolutionSpec | None:
    """The convolution beside the first layer (v2-xlarge, v2-xxlarge)."""
    config.expect("conv_groups", 1)
    size = config.integer("conv_kernel_size", minimum=0, default=0)
    if not size:
        return None
    if size % 2 == 0:
        raise config.unsupported("conv_kernel_size", f"'conv_kernel_size' is {size}; supported: odd numbers and 0")
    is_default = config.text("conv_act", default="tanh") == "tanh"
    return ConvolutionSpec(size, "tanh" if is_default else read_activation(config, "conv_act", "tanh"))


def encode(spec: ModelSpec, context: int, task: EmbeddingSpec | ClassifierSpec) -> Graph:
    """The graph of one forward pass on a batch of complete texts."""
    encoder, distances = EncoderGraph(spec, context), spec.distances
    assert distances is not None
    types = "embeddings.token_type_embeddings" if spec.num_token_types else None
    x = encoder.positions(encoder.embedding("embeddings.word_embeddings"), None, types)
    x = encoder.norm("embeddings.LayerNorm", x)
    rows, size = encoder.vector(ROWS, spec.num_distances), 2 * distances.buckets * spec.hidden_size
    for layer in range(spec.num_layers):
        heads = encoder.vector(f"encoder.layer.{layer}.attention.self.{HEADS}", size)
        more = {"distance_heads": heads, "distance_rows": rows}
        embedded, x = x, bert.add_layer(encoder, layer, x, NAMES, more)
        if layer == 0 and spec.convolution is not None:
            x = _add_convolution(encoder, spec.convolution, embedded, x)
    return finish(encoder, x, task, HEAD)


def _add_convolution(encoder: EncoderGraph, convolution: ConvolutionSpec, embedded: str, x: str) -> str:
    inputs = {"x": embedded, "positions": encoder.input("positions")}
    near = encoder.graph.add("near_rows", inputs, name="near", size=convolution.size)
    module = [("encoder.conv.conv", encoder.spec.hidden_size)]
    convolved = encoder.linear(module, near, activation=convolution.activation)
    return encoder.norm("encoder.conv.LayerNorm", encoder.add(convolved, x, "encoder.conv.added"))
