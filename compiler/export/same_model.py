"""Checks that two specs describe the same model: the spec of a bundle, and the one that a program reads from the files
written for it.
"""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np

from ..ir.rope import inverse_frequencies, pairs
from ..ir.spec import ModelSpec, RopeSpec

# float32 holds the numbers of GGUF's keys.
RELATIVE = 1e-6
# They do not change the logits.
TOKENS = ("bos_token_id", "eos_token_ids")


def differences(spec: ModelSpec, read: ModelSpec, *, ignored: tuple[str, ...] = ()) -> list[str]:
    """The names of the fields whose values compute something else."""
    return [
        each.name
        for each in fields(ModelSpec)
        if each.name not in (*TOKENS, *ignored) and not same(spec, read, each.name)
    ]


def same(spec: ModelSpec, read: ModelSpec, name: str) -> bool:
    one, other = getattr(spec, name), getattr(read, name)
    if name == "attention_scale":
        # None: the usual one.
        one, other = one or spec.head_dim**-0.5, other or read.head_dim**-0.5
    if name == "window_rope":
        one, other = one or spec.rope, other or read.rope
    if isinstance(one, RopeSpec) and isinstance(other, RopeSpec):
        return same_rotation(one, other, spec)
    if isinstance(one, float) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=RELATIVE)
    return bool(one == other)


def same_rotation(one: RopeSpec, other: RopeSpec, spec: ModelSpec) -> bool:
    """Whether both rotate alike, within and beyond the trained length."""
    if pairs(one, spec.head_dim) != pairs(other, spec.head_dim):
        return False
    lengths = (1, spec.max_position_embeddings, *(rope.original_max_position_embeddings + 1 for rope in (one, other)))
    return math.isclose(one.attention_factor, other.attention_factor, rel_tol=RELATIVE) and all(
        np.allclose(
            inverse_frequencies(one, spec.head_dim, length),
            inverse_frequencies(other, spec.head_dim, length),
            rtol=RELATIVE, atol=0,
        )
        for length in lengths
    )  # fmt: skip
