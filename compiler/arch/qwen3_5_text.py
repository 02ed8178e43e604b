"""Qwen3.5, dense: three layers of the gated delta rule for each layer of attention, whose result is gated. Qwen Team
2026.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec, StateSpec
from . import decoder
from .decoder_config import listed_layer_types, read_decoder_config, read_num_layers
from .draft_heads import DraftLayer, draft
from .hybrid import HybridLayer

__all__ = ["draft_tokens", "forward", "read_config"]

LAYOUT = decoder.DecoderLayout(norm_offset=1.0)
# The tensors say whether there are heads that draft tokens. The text model has one position for each token.
HARMLESS = frozenset({"mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"})
MROPE = frozenset({"mrope_interleaved", "mrope_section"})


class Qwen35Layer(HybridLayer):
    def _head_projection(self, name: str, x: str) -> str:
        return self._query_rows("q_proj", 0, x, "activation") if name == "q" else super()._head_projection(name, x)

    def _attention_gate(self, x: str) -> str:
        return self._query_rows("gate_proj", 1, x, "float32")

    def _query_rows(self, name: str, half: int, x: str, dtype: str) -> str:
        """The queries (0) or the gates (1) of all heads, which alternate in one weight."""
        size = self._head_dim
        ranges = [((2 * head + half) * size, (2 * head + half + 1) * size) for head in range(self._spec.num_heads)]
        return self._rows_of(f"self_attn.{name}", "self_attn.q_proj", ranges, x, bias=self._spec.qkv_bias, dtype=dtype)


class Qwen35DraftLayer(DraftLayer, Qwen35Layer):
    pass


forward = partial(decoder.forward, layout=LAYOUT, layers=Qwen35Layer)
draft_tokens = partial(draft, layout=LAYOUT, layers=Qwen35DraftLayer)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "qwen3_5_text"."""
    config.expect("attn_output_gate", True)
    config.expect("mlp_only_layers", [], None)
    num_layers, every = read_num_layers(config), config.integer("full_attention_interval", default=4)
    kinds = listed_layer_types(config, num_layers, "linear_attention", "full_attention") or tuple(
        "linear_attention" if (layer + 1) % every else "full_attention" for layer in range(num_layers)
    )
    states = StateSpec(
        taps=config.integer("linear_conv_kernel_dim", default=4, minimum=2),
        heads=config.integer("linear_num_value_heads", default=32),
        groups=config.integer("linear_num_key_heads", default=16),
        key_dim=config.integer("linear_key_head_dim", default=128),
        value_dim=config.integer("linear_value_head_dim", default=128),
    )
    if states.heads % states.groups:
        raise config.contradiction(
            "linear_num_value_heads",
            f"'linear_num_value_heads' is {states.heads}, not a multiple of 'linear_num_key_heads', which is "
            f"{states.groups}",
        )
    spec = read_decoder_config(
        config,
        num_kv_heads=config.integer("num_key_value_heads", default=4),
        head_dim=config.integer("head_dim", default=256),
        bias_keys=("attention_bias",),
        qk_norm=True,
        rotates_parts=True,
        default_rotated=0.25,
        rope_ignored=MROPE,
        default_eps=1e-6,
        harmless=HARMLESS,
    )
    return replace(
        spec,
        mixers=tuple("gated_delta" if kind == "linear_attention" else "attention" for kind in kinds),
        states=states,
    )
