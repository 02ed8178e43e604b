"""LFM2 and LFM2.5: short gated convolutions, and attention with norms of heads in some layers. Liquid AI 2025."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec, StateSpec
from . import decoder
from .decoder_config import even_head_dim, listed_layer_types, read_decoder_config, read_num_layers
from .hybrid import HybridLayer

__all__ = ["forward", "read_config"]

LAYOUT = decoder.DecoderLayout(
    fused={
        "self_attn.out_proj": ("self_attn.o_proj",),
        "feed_forward.w1": ("mlp.gate_proj",),
        "feed_forward.w3": ("mlp.up_proj",),
        "feed_forward.w2": ("mlp.down_proj",),
    },
    before_attention="operator_norm",
    before_feed_forward="ffn_norm",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    final_norm="model.embedding_norm",
)
# What the authors' training wrote: the kind of the gate, the first values of weights, and sizes that are given twice.
HARMLESS = frozenset(
    {
        "block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_xavier_init",
        "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads",
    }
)  # fmt: skip
OLD_NAMES = {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}

forward = partial(decoder.forward, layout=LAYOUT, layers=HybridLayer)


def read_config(config: ConfigReader, harmless: frozenset[str] = frozenset()) -> ModelSpec:
    """The spec of a config.json with model_type "lfm2"; ``harmless``: more keys that do not change the logits."""
    # transformers reads the older names first.
    old = {name: key for name, key in OLD_NAMES.items() if config.has(name)}
    config = config.renamed({**{key: f"unread {key}" for key in old.values()}, **old})
    config.ignore(*(f"unread {key}" for key in old.values()))
    config.expect("block_use_swiglu", True)
    config.expect("use_pos_enc", True)
    num_layers, conv_bias = read_num_layers(config), config.flag("conv_bias", default=False)
    full = config.integers("full_attn_idxs")
    kinds = listed_layer_types(config, num_layers, "conv", "full_attention") or tuple(
        "full_attention" if full is None or layer in full else "conv" for layer in range(num_layers)
    )
    taps, adjusts = (
        config.integer("conv_L_cache", default=3, minimum=2),
        config.flag("block_auto_adjust_ff_dim", default=True),
    )
    multiplier = config.number("block_ffn_dim_multiplier", default=1.0)
    multiple = config.integer("block_multiple_of", default=256)
    spec = read_decoder_config(
        config,
        num_kv_heads=config.integer("num_key_value_heads"),
        head_dim=even_head_dim(config, None),
        activation="silu",
        qk_norm=True,
        default_theta=1_000_000.0,
        tied=True,
        eps_key="norm_eps",
        default_eps=1e-5,
        harmless=HARMLESS | harmless,
    )
    return replace(
        spec,
        intermediate_size=adjusted(spec.intermediate_size, multiplier, multiple) if adjusts else spec.intermediate_size,
        mixers=tuple("short_conv" if kind == "conv" else "attention" for kind in kinds),
        states=StateSpec(taps, conv_bias=conv_bias, bias=conv_bias),
    )


def adjusted(size: int, multiplier: float, multiple: int) -> int:
    """The size of the feed-forward: two thirds of the one given, times a factor, rounded up."""
    return multiple * -(-int(multiplier * int(2 * size / 3)) // multiple)
