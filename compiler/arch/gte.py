"""GTE of 2024 (gte-multilingual, gte-large-en-v1.5, arctic-embed-m-v2.0): BERT with rotated heads instead of a table of
positions, and a gated feed-forward. Zhang et al. 2024.
"""

from __future__ import annotations

import re

from ..formats.config import ConfigReader
from ..ir.graph import Graph
from ..ir.spec import ModelSpec, RopeSpec
from ..ir.tasks import ClassifierSpec, EmbeddingSpec
from .decoder_config import even_head_dim
from .encoder import EncoderGraph, HeadLayout, finish
from .encoder_config import read_encoder_config
from .rope_config import RopeSizes, read_rope

# In the files of its own code, and of transformers.
PREFIX = ("new.", "gte.")
OTHER_HEADS = re.compile(r"(?:pooler|lm_head|classifier)\..*")
HEAD = HeadLayout(dense=[("pooler.dense", "tanh")])
THETA = 160_000.0
# Keys of the model's own code that do not change its results.
HARMLESS = frozenset({"logn_attention_clip1", "unpad_inputs", "use_memory_efficient_attention"})


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "new" or "gte"."""
    config.expect("layer_norm_type", "layer_norm")
    config.expect("pack_qkv", True)
    config.expect("logn_attention_scale", False)
    rope = _read_rope(config, even_head_dim(config, None))
    return read_encoder_config(
        config,
        num_token_types=config.integer("type_vocab_size", minimum=0, default=1),
        rope=rope,
        positions_by="rope",
        mlp_bias=False,
        harmless=HARMLESS,
    )


def _read_rope(config: ConfigReader, head_dim: int) -> RopeSpec:
    """The rotation, in which "ntk" stretches all lengths by a factor f: theta becomes f * theta, and every frequency is
    divided by f^(2 / head_dim). transformers does not compute it.
    """
    sizes = RopeSizes(head_dim, config.integer("max_position_embeddings"), default_theta=THETA)
    scaling = config.section("rope_scaling")
    if scaling is None or scaling.optional_text("type") != "ntk":
        return read_rope(config, sizes)
    # Another factor for each frequency.
    scaling.expect("mixed_b", None)
    factor, theta = scaling.number("factor"), config.number("rope_theta", default=THETA)
    scaling.finish()
    return RopeSpec(theta * factor, "linear", factor=factor ** (2 / head_dim))


def encode(spec: ModelSpec, context: int, task: EmbeddingSpec | ClassifierSpec) -> Graph:
    """The graph of one forward pass on a batch of complete texts."""
    encoder, hidden, size = EncoderGraph(spec, context), spec.hidden_size, spec.intermediate_size
    x = encoder.embedding("embeddings.word_embeddings")
    x = encoder.positions(x, None, "embeddings.token_type_embeddings" if spec.num_token_types else None)
    x = encoder.norm("embeddings.LayerNorm", x)
    for layer in range(spec.num_layers):
        here = f"encoder.layer.{layer}"
        qkv = encoder.linear([(f"{here}.attention.qkv_proj", 3 * hidden)], x, dtype="activation")
        projected = encoder.linear([(f"{here}.attention.o_proj", hidden)], encoder.attention(layer, qkv))
        x = encoder.norm(f"{here}.attn_ln", encoder.add(projected, x, f"{here}.after_attention"))
        # The rows of the gate follow those of what it gates.
        both = f"{here}.mlp.up_gate_proj"
        gated = encoder.gated(both, both, x, bias=False, gate_row=size)
        down = encoder.linear([(f"{here}.mlp.down_proj", hidden)], gated)
        x = encoder.norm(f"{here}.mlp_ln", encoder.add(down, x, f"{here}.after_feed_forward"))
    return finish(encoder, x, task, HEAD)
