"""Costs: how long a device computes a step, as a function of what the step contains.

    seconds = linear(positions) + row * rows + read * reads + pair * pairs

``linear`` is piecewise linear: a few positions cost little more than one, because weights are read once for all of
them. A read is a key that a decoding sequence sees; a pair is a new position of a prompt and a key that it sees. So one
function covers steps that decode, steps that compute prompts, and steps that do both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nearfar.compiler.runtime.errors import RequestError

from ..engine.step import Row


class Shape(NamedTuple):
    """The content of a step. ``rows`` are sampled; see the module for ``reads`` and ``pairs``."""

    positions: int
    rows: int
    reads: int
    pairs: int


def shape_of(rows: Iterable[Row]) -> Shape:
    """The shape of a step of the scheduler."""
    positions = sampled = reads = pairs = 0
    for _, start, length, num_sampled, *_ in rows:
        positions += length
        sampled += num_sampled
        if length == 1:
            reads += start + 1
        else:
            pairs += length * start + length * (length + 1) // 2
    return Shape(positions, sampled, reads, pairs)


@dataclass(frozen=True, slots=True)
class StepCosts:
    """``knots``: positions and the seconds of ``linear`` for them. Before the first knot ``linear`` is constant,
    because the weights are read anyway; after the last one it keeps the last slope. ``row``, ``read`` and ``pair`` are
    seconds for each. Raises RequestError for impossible costs.
    """

    knots: tuple[tuple[float, float], ...]
    row: float = 0.0
    read: float = 0.0
    pair: float = 0.0

    def __post_init__(self) -> None:
        if not self.knots or any(left[0] >= right[0] for left, right in pairwise(self.knots)):
            raise RequestError("costs: there must be a knot, and the positions of knots must rise")
        if self.knots[0][1] <= 0 or any(left[1] > right[1] for left, right in pairwise(self.knots)):
            raise RequestError("costs: the seconds of knots must be positive, and must not fall")
        if min(self.row, self.read, self.pair) < 0:
            raise RequestError("costs: row, read and pair must not be negative")

    def seconds(self, shape: Shape) -> float:
        positions, rows, reads, pairs = shape
        return self.linear(positions) + self.row * rows + self.read * reads + self.pair * pairs

    def decode_seconds(self, sequences: int, reads: int, steps: int) -> npt.NDArray[np.float64]:
        """The seconds (steps,) of consecutive steps in which ``sequences`` decode. The first step has ``reads``; each
        further one has another for each sequence. Bit by bit what `seconds` returns.
        """
        reads_of = reads + sequences * np.arange(steps)
        return np.asarray(self.linear(sequences) + self.row * sequences + self.read * reads_of, np.float64)

    def linear(self, positions: int) -> float:
        knots = self.knots
        if positions <= knots[0][0] or len(knots) == 1:
            return knots[0][1]
        index = min(bisect_right(knots, (positions, inf)), len(knots) - 1)
        (left, low), (right, high) = knots[index - 1], knots[index]
        return low + (high - low) * (positions - left) / (right - left)
