"""Fitting: step costs from measured times of steps.

The cost function is linear in its unknowns: the seconds at each knot, and those of a row, a read and a pair. Least
squares without negative unknowns finds them; each time counts relative to its size, and times that other work on the
machine has stretched count less (iteratively reweighted, for least absolute deviations).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nearfar.compiler.runtime.errors import RequestError

from .costs import Shape, StepCosts

Floats = npt.NDArray[np.float64]
ROUNDS = 20
# Residuals below this share of a time count as equal.
NOISE = 0.01
NON_NEGATIVE_STEPS = 2000
# Of knots with few measurements: how much weight the neighbours' line has.
SMOOTHNESS = 0.01


class Measured(NamedTuple):
    """``seconds`` of steps with these shapes together."""

    shapes: tuple[Shape, ...]
    seconds: float


def fit_costs(measured: Sequence[Measured], positions: Sequence[float]) -> StepCosts:
    """The costs with knots at ``positions``, which rise. Raises RequestError for fewer measurements than unknowns."""
    unknowns = len(positions) + 3
    if len(measured) < unknowns:
        raise RequestError(f"{len(measured)} measurements do not determine {unknowns} costs; measure more")
    features = np.array(
        [sum((_features(shape, positions) for shape in each.shapes), np.zeros(unknowns)) for each in measured]
    )
    seconds = np.array([each.seconds for each in measured])
    relative = features / seconds[:, None]
    # The unknowns are of different sizes: each counts in units of its largest share of a time.
    scale = np.maximum(relative.max(axis=0), 1e-30)
    rows, bends = relative / scale, _bends(positions, unknowns) / (np.median(seconds) * scale)
    weights = np.ones(len(rows))
    found = np.zeros(unknowns)
    for _ in range(ROUNDS):
        rooted = np.sqrt(weights)[:, None]
        found = _non_negative(np.vstack([rows * rooted, bends]), np.concatenate([rooted[:, 0], np.zeros(len(bends))]))
        weights = 1 / np.maximum(NOISE, np.abs(rows @ found - 1))
        weights /= weights.mean()
    made = found / scale
    knots = np.maximum.accumulate(made[: len(positions)])
    if knots[0] <= 0:
        raise RequestError("the measurements say nothing about the smallest steps; measure some of few positions")
    row, read, pair = map(float, made[len(positions) :])
    return StepCosts(tuple(zip(map(float, positions), map(float, knots), strict=True)), row, read, pair)


def _features(shape: Shape, positions: Sequence[float]) -> Floats:
    """What the unknowns are multiplied with."""
    linear = np.zeros(len(positions))
    index = int(np.clip(np.searchsorted(positions, shape.positions), 1, max(1, len(positions) - 1)))
    if len(positions) == 1 or shape.positions <= positions[0]:
        linear[0] = 1
    else:
        share = (shape.positions - positions[index - 1]) / (positions[index] - positions[index - 1])
        linear[index - 1], linear[index] = 1 - share, share
    return np.concatenate([linear, [shape.rows, shape.reads, shape.pairs]])


def _bends(positions: Sequence[float], unknowns: int) -> Floats:
    """Rows whose product with the unknowns is how far each inner knot lies from the line of its neighbours, relative to
    the size of steps there.
    """
    rows = np.zeros((max(0, len(positions) - 2), unknowns))
    for index, row in enumerate(rows):
        left, middle, right = positions[index : index + 3]
        share = (middle - left) / (right - left)
        row[index : index + 3] = SMOOTHNESS * np.array([1 - share, -1, share])
    return rows


def _non_negative(rows: Floats, goal: Floats) -> Floats:
    """The vector without negative numbers for which ``rows`` times it comes closest to ``goal``: coordinate descent
    (Franc, Hlaváč and Navara 2005).
    """
    gram, product = rows.T @ rows, rows.T @ goal
    found = np.zeros(len(product))
    gradient = -product
    diagonal = np.maximum(np.diag(gram), 1e-30)
    for _ in range(NON_NEGATIVE_STEPS):
        largest = 0.0
        for index in range(len(found)):
            new = max(0.0, found[index] - gradient[index] / diagonal[index])
            change = new - found[index]
            if change:
                gradient += gram[:, index] * change
                found[index] = new
                largest = max(largest, abs(change))
        if largest <= 1e-10 * max(1e-30, float(found.max())):
            break
    return found
