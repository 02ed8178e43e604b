"""EuroBERT: the layers of Llama, whose tokens see those after them too. Boizard et al. 2025."""

from __future__ import annotations

import re
from dataclasses import replace

from ..formats.config import ConfigReader
from ..ir.graph import Graph
from ..ir.spec import ModelSpec
from ..ir.tasks import ClassifierSpec, EmbeddingSpec
from .decoder_config import even_head_dim
from .encoder import EncoderGraph, HeadLayout, finish
from .encoder_config import read_encoder_config
from .rope_config import RopeSizes, read_rope

PREFIX = "model."
OTHER_HEADS = re.compile(r"(?:lm_head|dense|classifier)\..*")
HEAD = HeadLayout(dense=[("dense", "gelu")])
THETA = 250_000.0


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "eurobert"."""
    # Projections with biases are not published.
    config.expect("attention_bias", False)
    config.expect("mlp_bias", False)
    heads, head_dim = config.integer("num_attention_heads"), even_head_dim(config, None)
    config.expect("head_dim", head_dim, None)
    kv_heads = config.optional_integer("num_key_value_heads") or heads
    if heads % kv_heads:
        raise config.contradiction(
            "num_key_value_heads", f"'num_attention_heads' is {heads}, not a multiple of {kv_heads} kv heads"
        )
    positions = config.integer("max_position_embeddings")
    spec = read_encoder_config(
        config,
        default_activation="silu",
        eps_key="rms_norm_eps",
        default_eps=1e-5,
        rope=read_rope(config, RopeSizes(head_dim, positions, default_theta=THETA)),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        harmless=frozenset({"classifier_pooling"}),
    )
    return replace(spec, num_kv_heads=kv_heads)


def encode(spec: ModelSpec, context: int, task: EmbeddingSpec | ClassifierSpec) -> Graph:
    """The graph of one forward pass on a batch of complete texts."""
    encoder, hidden = EncoderGraph(spec, context, norm_bias=False, centered=False), spec.hidden_size
    kv = spec.num_kv_heads * spec.head_dim
    x = encoder.embedding("embed_tokens")
    for layer in range(spec.num_layers):
        here = f"layers.{layer}"
        rows = [(f"{here}.self_attn.{name}_proj", size) for name, size in (("q", hidden), ("k", kv), ("v", kv))]
        normed = encoder.norm(f"{here}.input_layernorm", x)
        qkv = encoder.linear(rows, normed, f"{here}.self_attn.qkv_proj", bias=False, dtype="activation")
        attended = encoder.attention(layer, qkv)
        x = encoder.add(
            encoder.linear([(f"{here}.self_attn.o_proj", hidden)], attended, bias=False), x, f"{here}.after_attention"
        )
        normed = encoder.norm(f"{here}.post_attention_layernorm", x)
        gated = encoder.gated(f"{here}.mlp.gate_proj", f"{here}.mlp.up_proj", normed, bias=False)
        down = encoder.linear([(f"{here}.mlp.down_proj", hidden)], gated, bias=False)
        x = encoder.add(down, x, f"{here}.after_feed_forward")
    return finish(encoder, encoder.norm("norm", x), task, HEAD)
