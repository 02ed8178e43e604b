"""Rotary frequencies of a RopeSpec, and the table of cosines and sines that runtimes compute from them.

The scalings, applied to the frequencies theta^(-2i/R) of the pairs i:

none          unchanged
linear        divided by the factor
llama3        low frequencies are divided, high ones unchanged, and those in between are blended, by wavelength against
              the original context (Llama 3.1)
yarn          the same idea, blended by the pair's index (Peng et al. 2023)
longrope      divided by a factor for each pair: one list of factors within the original context, another beyond it
              (Ding et al. 2024)
dynamic       a larger theta for contexts beyond the trained one (NTK-aware)
proportional  pairs over the whole head; those above the rotated part have the frequency 0

A scaling that depends on the sequence's length uses the bundle's context instead, so that cached keys stay valid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .spec import RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int, context: int) -> list[float]:
    """The angle per position of each pair, in radians: `pairs` of them. ``context`` is the bundle's, in tokens."""
    rotated = rotary_dim(rope, head_dim)
    if rope.scaling == "proportional":
        turning = [rope.theta ** (-2 * pair / head_dim) / rope.factor for pair in range(rotated // 2)]
        return turning + [0.0] * (head_dim // 2 - len(turning))
    theta = rope.theta
    if rope.scaling == "dynamic" and context > rope.original_max_position_embeddings:
        stretch = rope.factor * context / rope.original_max_position_embeddings - (rope.factor - 1)
        theta *= stretch ** (rotated / (rotated - 2))
    plain = [theta ** (-2 * pair / rotated) for pair in range(rotated // 2)]
    if rope.scaling == "linear":
        return [frequency / rope.factor for frequency in plain]
    if rope.scaling == "llama3":
        return [_llama3(rope, frequency) for frequency in plain]
    if rope.scaling == "yarn":
        return _yarn(rope, plain, rotated)
    if rope.scaling == "longrope":
        is_long = context > rope.original_max_position_embeddings
        factors = rope.long_factors if is_long else rope.short_factors
        return [frequency / factor for frequency, factor in zip(plain, factors, strict=True)]
    return plain


def rotary_dim(rope: RopeSpec, head_dim: int) -> int:
    """How many elements of a head are rotated."""
    return head_dim if rope.rotary_dim is None else rope.rotary_dim


def pairs(rope: RopeSpec, head_dim: int) -> int:
    """The number of pairs of elements that have an angle in the table."""
    return (head_dim if rope.scaling == "proportional" else rotary_dim(rope, head_dim)) // 2


def _llama3(rope: RopeSpec, frequency: float) -> float:
    # Wavelengths that fit many times into the original context are unchanged, long ones are stretched.
    turns = rope.original_max_position_embeddings * frequency / (2 * math.pi)
    if turns >= rope.high_freq_factor:
        return frequency
    if turns <= rope.low_freq_factor:
        return frequency / rope.factor
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return (1 - blend) * frequency / rope.factor + blend * frequency


def _yarn(rope: RopeSpec, plain: Sequence[float], rotated: int) -> list[float]:
    def pair_of(turns: float) -> float:
        """The index of the pair that turns this often within the original context."""
        original = rope.original_max_position_embeddings
        return rotated * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    # transformers avoids a division by zero in the same way.
    width = high - low or 0.001
    stretched = [min(max((pair - low) / width, 0.0), 1.0) for pair in range(len(plain))]
    return [
        share * frequency / rope.factor + (1 - share) * frequency
        for share, frequency in zip(stretched, plain, strict=True)
    ]


def rope_table(
    frequencies: Sequence[float], positions: int, scale: float = 1.0, first: int = 0
) -> npt.NDArray[np.float32]:
    """(positions, pairs, 2): cosine and sine times ``scale`` of the positions from ``first`` on, computed in float64 so
    that far positions keep their precision.
    """
    angles = np.arange(first, first + positions)[:, None] * np.asarray(frequencies)[None, :]
    return (scale * np.stack([np.cos(angles), np.sin(angles)], axis=-1)).astype(np.float32)
