"""GPT-NeoX and Pythia: attention and an ungated feed-forward side by side, each with a LayerNorm of its own, one matrix
in which the queries, keys and values of each head follow each other, and a partial rotation. Black et al. 2022.
"""

from __future__ import annotations

from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import even_head_dim, read_activation, read_decoder_config

__all__ = ["forward", "read_config"]

LAYOUT = decoder.DecoderLayout(
    fused={
        "attention.dense": ("self_attn.o_proj",),
        "mlp.dense_h_to_4h": ("mlp.up_proj",),
        "mlp.dense_4h_to_h": ("mlp.down_proj",),
    },
    centered_norms=True,
    norm_bias=True,
    gated=False,
)
NAMES = {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}
DEFAULTS = {"rotary_pct": 0.25, "rotary_emb_base": 10000}


class GptNeoxLayer(decoder.Layer):
    _input = ""

    def attention(self, x: str, page_size: int) -> str:
        self._input = x
        return super().attention(x, page_size)

    def _feed_forward_input(self, x: str) -> str:  # noqa: ARG002
        return self._norm(self._layout.before_feed_forward, self._input)

    def _head_projection(self, name: str, x: str) -> str:
        size, part = self._head_dim, "qkv".index(name)
        starts = [(3 * head + part) * size for head in range(self._spec.num_heads)]
        ranges = [(start, start + size) for start in starts]
        module, bias = "attention.query_key_value", self._spec.qkv_bias
        return self._rows_of(f"attention.{name}_proj", module, ranges, x, bias=bias, dtype="activation")


forward = partial(decoder.forward, layout=LAYOUT, layers=GptNeoxLayer)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "gpt_neox"."""
    section = config.section("rope_parameters")
    for own, common in NAMES.items():
        if not (config.has(own) or (section is not None and section.has(common))):
            # transformers does not read the names of other families outside of the section.
            config.expect(common, DEFAULTS[own])
    config = config.renamed(NAMES)
    # Without it, the sub-layers follow each other, as in a few models that are not published for transformers.
    config.expect("use_parallel_residual", True)
    head_dim, bias = even_head_dim(config, None), config.flag("attention_bias", default=True)
    config.expect("head_dim", head_dim, None)
    config.expect("num_key_value_heads", config.integer("num_attention_heads"))
    return read_decoder_config(
        config,
        head_dim=head_dim,
        activation=read_activation(config, "hidden_act", "gelu"),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=True,
        rotates_parts=True,
        default_rotated=DEFAULTS["rotary_pct"],
        default_eps=1e-5,
        eps_key="layer_norm_eps",
    )
