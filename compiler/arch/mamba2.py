"""Mamba-2: layers of nothing but a state space, without attention and feed-forward. Dao & Gu 2024."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder, mamba_config
from .decoder_config import read_decoder_config
from .hybrid import HybridLayer

__all__ = ["forward", "read_config"]

LAYOUT = decoder.DecoderLayout(before_attention="norm", final_norm="model.norm_f")
# What only the first values of weights depend on, and float32 residuals, which all our graphs have.
HARMLESS = mamba_config.HARMLESS | {
    "expand", "rescale_prenorm_residual", "residual_in_fp32", "rms_norm", "time_step_floor", "time_step_max",
    "time_step_min", "time_step_rank",
}  # fmt: skip
# The state has one size, whatever the length. A bundle's context needs a limit.
MAX_CONTEXT = 1 << 20


class Mamba2Layer(HybridLayer):
    mamba = "mixer"

    def feed_forward(self, x: str) -> str:
        return x


forward = partial(decoder.forward, layout=LAYOUT, layers=Mamba2Layer)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "mamba2"."""
    config.expect("hidden_act", "silu", "swish")
    config = config.renamed(mamba_config.MAMBA2_KEYS).with_defaults({"mamba_n_groups": 8, "mamba_d_state": 128})
    states = mamba_config.read_mamba(config)
    states = replace(states, norm="after", norm_groups=states.groups)
    # The sizes of heads and of the rows between the projections, which stand for those of attention and feed-forward.
    width = states.heads * states.value_dim
    config = config.with_defaults(
        {
            "num_attention_heads": states.heads,
            "intermediate_size": width,
            "max_position_embeddings": MAX_CONTEXT,
            "rope_theta": 1.0,
        }
    )
    spec = read_decoder_config(
        config,
        num_kv_heads=states.heads,
        head_dim=2,
        eps_key="layer_norm_epsilon",
        default_eps=1e-5,
        harmless=HARMLESS,
    )
    layers = range(spec.num_layers)
    return replace(spec, mixers=tuple("mamba2" for _ in layers), states=states, unrotated=tuple(layers))
