"""Falcon-H1: attention and Mamba-2 side by side in every layer, and factors behind most projections. Falcon-LLM Team
2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec, StateSpec
from . import decoder, mamba_config
from .decoder_config import read_decoder_config
from .hybrid import HybridLayer

__all__ = ["forward", "read_config"]

LAYOUT = decoder.DecoderLayout(
    fused={f"feed_forward.{name}": (f"mlp.{name}",) for name in ("gate_proj", "up_proj", "down_proj")},
    before_feed_forward="pre_ff_layernorm",
    final_norm="model.final_layernorm",
)

forward = partial(decoder.forward, layout=LAYOUT, layers=HybridLayer)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "falcon_h1"."""
    # The factor of a projection's input is not one of its bias.
    for bias in ("attention_bias", "mamba_proj_bias", "projectors_bias"):
        config.expect(bias, False)
    states = mamba_config.read_mamba(config)
    before = config.flag("mamba_norm_before_gate", default=True)
    if config.flag("mamba_rms_norm", default=False):
        states = replace(states, norm="before" if before else "after", norm_groups=states.groups)
    embedding_scale, logit_scale = (
        config.number(key, default=1.0) for key in ("embedding_multiplier", "lm_head_multiplier")
    )
    factors = _read_factors(config, states)
    spec = read_decoder_config(
        config,
        bias_keys=("mlp_bias",),
        default_eps=1e-5,
        harmless=mamba_config.HARMLESS,
    )
    return replace(
        spec,
        embedding_scale=embedding_scale,
        logit_scale=logit_scale,
        mixers=tuple("attention_mamba2" for _ in range(spec.num_layers)),
        states=states,
        factors=factors,
    )


def _read_factors(config: ConfigReader, states: StateSpec) -> dict[str, float]:
    key, attention_in, attention_out, ssm_in, ssm_out = (
        config.number(f"{name}_multiplier", default=1.0)
        for name in ("key", "attention_in", "attention_out", "ssm_in", "ssm_out")
    )
    gate, down = _numbers(config, "mlp_multipliers", 2)
    width, grouped = states.heads * states.value_dim, states.groups * states.key_dim
    # z, x, B, C and the time step.
    starts = (0, width, 2 * width, 2 * width + grouped, 2 * width + 2 * grouped)
    parts = zip(starts, _numbers(config, "ssm_multipliers", 5), strict=True)
    factors = {
        "self_attn.q_proj": attention_in,
        "self_attn.k_proj": attention_in * key,
        "self_attn.v_proj": attention_in,
        "self_attn.o_proj": attention_out,
        "mlp.gate_proj": gate,
        "mlp.down_proj": down,
        **{f"mamba.in_proj[{start}]": ssm_in * factor for start, factor in parts},
        "mamba.out_proj": ssm_out,
    }
    return {name: factor for name, factor in factors.items() if factor != 1}


def _numbers(config: ConfigReader, key: str, count: int) -> Sequence[float]:
    if not config.has(key):
        return (1.0,) * count
    numbers = config.numbers(key)
    if len(numbers) != count:
        raise config.contradiction(key, f"{key!r} has {len(numbers)} numbers instead of {count}")
    return numbers
