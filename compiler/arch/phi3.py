"""Phi-3: Llama with fused q, k and v, fused gate and up, and an optional partial rotation of heads. Abdin et al.
2024.
"""

from __future__ import annotations

from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import even_head_dim, read_decoder_config, read_sliding_window

__all__ = ["forward", "read_config"]

LAYOUT = decoder.DecoderLayout(
    fused={
        "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    }
)

forward = partial(decoder.forward, layout=LAYOUT)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "phi3"."""
    # Published configs contain these keys although every Phi-3 has the same values.
    config.expect("attention_bias", False)
    config.expect("interpolate_factor", 1)
    config.expect("lm_head_bias", False)
    config.expect("mlp_bias", False)
    config.expect("full_attn_mod", 1)
    return read_decoder_config(
        config,
        head_dim=even_head_dim(config, None),
        windows=read_sliding_window(config, default=None),
        rotates_parts=True,
    )
