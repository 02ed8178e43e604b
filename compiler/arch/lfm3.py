"""LFM3: LFM2 with longer convolutions, windows, norms behind the sub-layers, and a gate for each head of attention.
Liquid AI 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec, RopeSpec, StateSpec
from . import decoder, lfm2
from .decoder_config import even_head_dim, listed_layer_types, read_decoder_config, read_num_layers, windows_of
from .hybrid import HybridLayer
from .rope_config import RopeSizes, read_layer_ropes

__all__ = ["forward", "read_config"]

LAYOUT = replace(
    lfm2.LAYOUT,
    fused={name: parts for name, parts in lfm2.LAYOUT.fused.items() if name != "self_attn.out_proj"},
    after_attention="post_operator_norm",
    after_feed_forward="post_ffn_norm",
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
)


class Lfm3Layer(HybridLayer):
    def _attention_gate(self, x: str) -> str:
        """Each of H rows, once for each element of its head."""
        heads = [(head, head + 1) for head in range(self._spec.num_heads) for _ in range(self._head_dim)]
        return self._rows_of("self_attn.gate_proj", "self_attn.gate_proj", heads, x, bias=False)


forward = partial(decoder.forward, layout=LAYOUT, layers=Lfm3Layer)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "lfm3"."""
    config.expect("use_sandwich_norm", True)
    config.expect("use_attention_gate", True)
    num_layers, conv_bias = read_num_layers(config), config.flag("conv_bias", default=False)
    kinds = listed_layer_types(config, num_layers, "conv", "sliding_attention", "full_attention") or tuple(
        "full_attention" if layer % 4 == 2 else "sliding_attention" if layer % 4 == 0 and layer else "conv"
        for layer in range(num_layers)
    )
    head_dim = even_head_dim(config, config.integer("head_dim", default=128))
    window = config.optional_integer("sliding_window", absent=256)
    taps = config.integer("conv_L_cache", default=7, minimum=2)
    spec = read_decoder_config(
        config,
        num_kv_heads=config.integer("num_key_value_heads"),
        head_dim=head_dim,
        activation="silu",
        bias_keys=("attention_bias",),
        qk_norm=True,
        windows=windows_of(config, kinds, window),
        ropes=_read_ropes(config, head_dim),
        tied=True,
        eps_key="norm_eps",
        default_eps=1e-5,
    )
    return replace(
        spec,
        mixers=tuple("short_conv" if kind == "conv" else "attention" for kind in kinds),
        states=StateSpec(taps, conv_bias=conv_bias, bias=conv_bias),
    )


def _read_ropes(config: ConfigReader, head_dim: int) -> Mapping[str, RopeSpec]:
    """The rotations of both kinds of layers. A part of a head is rotated with the frequencies of the whole head, as
    trained, also if the file calls that "default", for which transformers 5.24 rotates the whole head.
    """
    sizes = RopeSizes(head_dim, config.integer("max_position_embeddings"), rotates_parts=True, default_theta=1e6)
    if not config.has("rope_parameters"):
        full = RopeSpec(theta=1e6, scaling="proportional", rotary_dim=head_dim // 2)
        return {"full_attention": full, "sliding_attention": RopeSpec(theta=10_000.0)}
    ropes = read_layer_ropes(config, sizes, replace(sizes, default_theta=10_000.0))
    return {
        kind: replace(rope, scaling="proportional") if rope.rotary_dim is not None else rope
        for kind, rope in ropes.items()
    }
