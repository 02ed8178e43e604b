"""ModernBERT: norms before attention and feed-forward, rotated heads, and windows in two of three layers. Warner et al.
2024.
"""

from __future__ import annotations

import re

from ..formats.config import ConfigReader
from ..ir.graph import Graph
from ..ir.spec import ModelSpec
from ..ir.tasks import ClassifierSpec, EmbeddingSpec
from .decoder_config import even_head_dim, read_layer_types
from .encoder import EncoderGraph, HeadLayout, finish
from .encoder_config import read_encoder_config
from .rope_config import RopeSizes, read_layer_ropes

PREFIX = "model."
OTHER_HEADS = re.compile(r"(?:head|decoder|classifier)\..*")
HEAD = HeadLayout(dense=[("head.dense", "gelu")], dense_bias=False, norm="head.norm", token_dense=True)
GLOBAL_THETA, LOCAL_THETA = 160_000.0, 10_000.0
HARMLESS = frozenset(
    {
        "classifier_pooling", "compile_fallback", "decoder_bias", "deterministic_flash_attn",
        "initializer_cutoff_factor", "reference_compile", "repad_logits_with_grad", "sparse_pred_ignore_index",
        "sparse_prediction",
    }
)  # fmt: skip


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "modernbert"."""
    every = config.integer("global_attn_every_n_layers", default=3)
    kinds = read_layer_types(config, pattern=lambda layer: layer % every == 0)
    context, head_dim = config.integer("max_position_embeddings"), even_head_dim(config, None)
    thetas = (config.optional_number("global_rope_theta"), config.optional_number("local_rope_theta"))
    ropes = read_layer_ropes(
        config,
        RopeSizes(head_dim, context, default_theta=thetas[0] or GLOBAL_THETA),
        RopeSizes(head_dim, context, default_theta=thetas[1] or LOCAL_THETA),
    )
    # Half of the tokens of 'local_attention' are on each side, and the token itself is one more.
    window = config.integer("local_attention", default=128) // 2 + 1
    config.ignore("sliding_window")
    # Norms, projections and heads with biases are not published.
    config.expect("norm_bias", False)
    config.expect("attention_bias", False)
    config.expect("mlp_bias", False)
    config.expect("classifier_bias", False)
    config.expect("classifier_activation", "gelu")
    return read_encoder_config(
        config,
        activation_key="hidden_activation",
        eps_key="norm_eps",
        default_eps=1e-5,
        windows=tuple(window if kind == "sliding_attention" else None for kind in kinds),
        rope=ropes["full_attention"],
        window_rope=ropes["sliding_attention"],
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        harmless=HARMLESS,
    )


def encode(spec: ModelSpec, context: int, task: EmbeddingSpec | ClassifierSpec) -> Graph:
    """The graph of one forward pass on a batch of complete texts."""
    encoder, hidden, size = EncoderGraph(spec, context, norm_bias=False), spec.hidden_size, spec.intermediate_size
    x = encoder.norm("embeddings.norm", encoder.embedding("embeddings.tok_embeddings"))
    for layer in range(spec.num_layers):
        here = f"layers.{layer}"
        # The norm of the embeddings is that of the first layer.
        normed = encoder.norm(f"{here}.attn_norm", x) if layer else x
        qkv = encoder.linear([(f"{here}.attn.Wqkv", 3 * hidden)], normed, bias=False, dtype="activation")
        projected = encoder.linear([(f"{here}.attn.Wo", hidden)], encoder.attention(layer, qkv), bias=False)
        x = encoder.add(projected, x, f"{here}.after_attention")
        normed = encoder.norm(f"{here}.mlp_norm", x)
        both = f"{here}.mlp.Wi"
        gated = encoder.gated(both, both, normed, bias=False, up_row=size)
        down = encoder.linear([(f"{here}.mlp.Wo", hidden)], gated, bias=False)
        x = encoder.add(down, x, f"{here}.after_feed_forward")
    x = encoder.norm("final_norm", x)
    return finish(encoder, x, task, HEAD)
