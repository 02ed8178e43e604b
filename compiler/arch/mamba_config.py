"""Reads the keys of config.json that families with Mamba-2 layers share."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ..formats.config import ConfigReader
from ..ir.spec import StateSpec

# transformers writes an infinite limit in this form.
INFINITE = {"__float__": "Infinity"}
# JSON has no infinity: a limit of the time step that no float32 reaches.
UNLIMITED = [0.0, float(np.finfo(np.float32).max)]
# Tokens that transformers and the authors' kernels compute at once.
HARMLESS = frozenset({"chunk_size", "mamba_chunk_size", "mamba_use_mlp"})
# The names of the keys in Mamba-2's own family, by those of the hybrids.
MAMBA2_KEYS: Mapping[str, str] = {
    "expand": "mamba_expand",
    "num_heads": "mamba_n_heads",
    "head_dim": "mamba_d_head",
    "n_groups": "mamba_n_groups",
    "state_size": "mamba_d_state",
    "conv_kernel": "mamba_d_conv",
    "use_conv_bias": "mamba_conv_bias",
    "use_bias": "mamba_proj_bias",
}


def read_mamba(config: ConfigReader) -> StateSpec:
    """The sizes of Mamba-2 layers, without their norm. Raises CheckpointError for sizes that contradict each other, and
    UnsupportedModel for limits of the time step.
    """
    config.expect("time_step_limit", [0.0, math.inf], [0.0, INFINITE], [0, math.inf], UNLIMITED, None)
    width = config.optional_integer("mamba_d_ssm") or (
        config.integer("mamba_expand", default=2) * config.integer("hidden_size")
    )
    config.ignore("mamba_expand")
    heads, groups = config.integer("mamba_n_heads", default=128), config.integer("mamba_n_groups", default=1)
    head_dim, rest = divmod(width, heads)
    # "auto" is the only other value.
    config.expect("mamba_d_head", "auto", head_dim)
    if rest or heads % groups:
        raise config.contradiction(
            "mamba_n_heads",
            f"'mamba_n_heads' is {heads}, which must divide {width} columns and be a multiple of {groups} groups",
        )
    return StateSpec(
        taps=config.integer("mamba_d_conv", default=4, minimum=2),
        conv_bias=config.flag("mamba_conv_bias", default=True),
        bias=config.flag("mamba_proj_bias", default=False),
        heads=heads,
        groups=groups,
        key_dim=config.integer("mamba_d_state", default=256),
        value_dim=head_dim,
    )
