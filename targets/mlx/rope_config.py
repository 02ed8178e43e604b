"""The rotation of queries and keys as the keys of config.json that mlx-lm reads.

A scaling that depends on the sequence's length is written for the bundle's context, as `ir/rope.py` computes it:
"dynamic" as the theta that belongs to the context, "longrope" with the factors that belong to it.
"""

from __future__ import annotations

import math
from typing import Any

from nearfar.compiler.ir.rope import rotary_dim
from nearfar.compiler.ir.spec import ModelSpec, RopeSpec


def rope_keys(rope: RopeSpec, head_dim: int, context: int) -> dict[str, Any]:
    """``rope_theta`` and, if the rotation is scaled, ``rope_scaling``."""
    scaling = rope_scaling(rope, context)
    theta = {"rope_theta": theta_within(rope, head_dim, context)}
    return {**theta, "rope_scaling": scaling} if scaling else theta


def rope_parameters(rope: RopeSpec, head_dim: int, context: int) -> dict[str, Any]:
    """Both in one section, as newer models of mlx-lm read them."""
    scaling = rope_scaling(rope, context) or {"rope_type": "default"}
    return {"rope_theta": theta_within(rope, head_dim, context), **scaling}


def theta_within(rope: RopeSpec, head_dim: int, context: int) -> float:
    """The base of the frequencies. That of "dynamic" grows with contexts beyond the original one."""
    original = rope.original_max_position_embeddings
    if rope.scaling != "dynamic" or context <= original:
        return rope.theta
    rotated = rotary_dim(rope, head_dim)
    stretch: float = rope.factor * context / original - (rope.factor - 1)
    return float(rope.theta * stretch ** (rotated / (rotated - 2)))


def rope_scaling(rope: RopeSpec, context: int) -> dict[str, Any]:
    original = {"original_max_position_embeddings": rope.original_max_position_embeddings}
    match rope.scaling:
        case "none" | "dynamic":
            return {}
        case "linear":
            return {"rope_type": "linear", "factor": rope.factor}
        case "llama3":
            frequencies = {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
            return {"rope_type": "llama3", "factor": rope.factor, **frequencies, **original}
        case "yarn":
            # mlx-lm multiplies by 0.1 * mscale * ln(factor) + 1, transformers by the attention factor.
            mscale = (rope.attention_factor - 1) / (0.1 * math.log(rope.factor)) if rope.factor > 1 else 0.0
            return {
                "rope_type": "yarn",
                "factor": rope.factor,
                "beta_fast": rope.beta_fast,
                "beta_slow": rope.beta_slow,
                "mscale": mscale,
                "attention_factor": rope.attention_factor,
                **original,
            }
        case "longrope":
            is_long = context > rope.original_max_position_embeddings
            # mlx-lm always reads the second list.
            factors = list(rope.long_factors if is_long else rope.short_factors)
            names = {"type": "longrope", "rope_type": "longrope"}
            return {**names, "short_factor": factors, "long_factor": factors, **original}
        case "proportional":
            return {"rope_type": "proportional", "factor": rope.factor}


def is_computed(rope: RopeSpec, spec: ModelSpec) -> bool:
    """Whether mlx-lm multiplies cosines and sines by the same factor, and rounds as the spec does."""
    if rope.scaling == "yarn":
        return rope.truncate and (rope.factor > 1 or rope.attention_factor == 1)
    if rope.scaling == "longrope":
        original = rope.original_max_position_embeddings
        factor = spec.max_position_embeddings / original
        scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        return math.isclose(scale, rope.attention_factor, rel_tol=1e-6)
    return rope.attention_factor == 1
