"""Rotary frequencies of a RopeSpec, and the table of cosines and sines that runtimes compute from them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .spec import RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> list[float]:
    """theta^(-2i/R) for each pair i of R/2, scaled as the spec requires, in radians per position. R is the width of the
    rotated part of the head.
    """
    rotated = rotary_dim(rope, head_dim)
    return [scale_frequency(rope, rope.theta ** (-2 * pair / rotated)) for pair in range(rotated // 2)]


def rotary_dim(rope: RopeSpec, head_dim: int) -> int:
    """How many elements of a head are rotated."""
    return head_dim if rope.rotary_dim is None else rope.rotary_dim


def scale_frequency(rope: RopeSpec, frequency: float) -> float:
    if rope.scaling == "none":
        return frequency
    if rope.scaling == "linear":
        return frequency / rope.factor
    # llama3: wavelengths that fit many times into the original context are unchanged, long ones are stretched, and
    # those in between are blended.
    turns = rope.original_max_position_embeddings * frequency / (2 * math.pi)
    if turns >= rope.high_freq_factor:
        return frequency
    if turns <= rope.low_freq_factor:
        return frequency / rope.factor
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return (1 - blend) * frequency / rope.factor + blend * frequency


def rope_table(frequencies: Sequence[float], positions: int, scale: float = 1.0) -> npt.NDArray[np.float32]:
    """(positions, R/2, 2): cosine and sine times ``scale``, computed in float64 so that far positions keep their
    precision.
    """
    angles = np.arange(positions)[:, None] * np.asarray(frequencies)[None, :]
    return (scale * np.stack([np.cos(angles), np.sin(angles)], axis=-1)).astype(np.float32)
