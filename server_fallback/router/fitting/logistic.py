"""Logistic regressions of both sides at once, with L2 penalties; and Platt's calibration of their scores.

The two regressions share most of what they know: a prompt that is hard for near is mostly hard for far too. So the
penalty on the difference of their weights may be much larger than the one on their mean. Otherwise the noise of both
would add up in the gain, which is their difference. What is penalised may be the distance from an expected difference
instead of the difference itself.

Nothing here is random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

MAX_STEPS = 300
# Of the largest component of the mean loss's gradient.
TOLERANCE = 1e-6
# Two independent regressions with the penalty r have the penalty 2 r on their mean and r / 2 on their difference.
INDEPENDENT = 0.25


@dataclass(frozen=True, slots=True)
class Logistic:
    """right = sigmoid(weights . row + bias)."""

    weights: Array
    bias: float

    def logits(self, rows: Sequence[Any]) -> Array:
        """rows as in `fit_sides` -> (n,)."""
        logits: Array = times(rows, self.weights) + self.bias
        return logits


def sigmoid(logits: Array) -> Array:
    # In this form neither end overflows.
    return 0.5 * (1.0 + np.tanh(0.5 * logits))


def fit_sides(
    rows: Sequence[Any],
    rights: Sequence[Array],
    penalties: Array,
    apart: float = INDEPENDENT,
    start: Sequence[Logistic] | None = None,
    expected: Array | None = None,
) -> list[Logistic]:
    """The weights of each side that minimise the sum of all cross entropies and of penalties . (mean^2 + apart x
    (difference - expected)^2) / 2, with the mean of both sides' weights and the second side's less the first's. Biases
    have no penalty.

    rows: blocks of columns (n, d1), (n, d2), ..., each dense or sparse; rights: one or two of (n,), from 0 to 1;
    penalties (d,); expected (d,), or None for 0. A side that is always right or always wrong gets weights of 0, and as
    its bias the logit of (rights + 1) / (n + 2); the other one is then fitted alone. A ``start`` makes the fit faster
    and does not change its result.
    """
    constant = [float(right.sum()) in (0.0, float(len(right))) for right in rights]
    if any(constant):
        others = [right for right, alike in zip(rights, constant, strict=True) if not alike]
        fitted = iter(fit_sides(rows, others, penalties / 2 if len(rights) == 2 else penalties) if others else [])
        return [
            constant_side(right, len(penalties)) if alike else next(fitted)
            for right, alike in zip(rights, constant, strict=True)
        ]
    size, count = len(penalties), len(rights)
    # How much of the difference each side has.
    share = np.array([0.0]) if count == 1 else np.array([-0.5, 0.5])
    # In units in which every penalty is 1, so that all directions need about equally many steps.
    units = np.concatenate([1 / np.sqrt(penalties), 1 / np.sqrt(penalties * apart)])
    expected = np.zeros(size) if expected is None else expected
    # The distance from what is expected is what is fitted.
    expected_logits = np.outer(share, times(rows, expected))
    transposed = [block.T.tocsr() if hasattr(block, "tocsr") else block.T for block in rows]
    targets = np.stack(rights)

    def loss(values: Array) -> tuple[float, Array]:
        mean, distance = np.split(units * values[: 2 * size], 2)
        logits = expected_logits + times(rows, mean) + np.outer(share, times(rows, distance)) + values[2 * size :, None]
        wrong = sigmoid(logits) - targets
        sums = np.sum(np.logaddexp(0.0, logits) - targets * logits) + values[: 2 * size] @ values[: 2 * size] / 2
        slopes = [np.concatenate([block @ side for block in transposed]) for side in (wrong.sum(0), share @ wrong)]
        gradient = np.concatenate([units * np.concatenate(slopes) + values[: 2 * size], wrong.sum(1)])
        return float(sums) / len(targets[0]), gradient / len(targets[0])

    begin = np.zeros(2 * size + count)
    if start is not None:
        weights = np.stack([side.weights for side in start])
        begin[: 2 * size] = np.concatenate([weights.mean(0), weights[-1] - weights[0] - expected]) / units
        begin[2 * size :] = [side.bias for side in start]
    values = minimum(loss, begin)
    mean, distance = np.split(units * values[: 2 * size], 2)
    return [
        Logistic(mean + part * (distance + expected), float(bias))
        for part, bias in zip(share, values[2 * size :], strict=True)
    ]


def constant_side(right: Array, size: int) -> Logistic:
    rights = float(right.sum())
    return Logistic(np.zeros(size), float(np.log((rights + 1) / (len(right) - rights + 1))))


def minimum(loss: Callable[[Array], tuple[float, Array]], begin: Array) -> Array:
    """By the quasi-Newton method of Byrd et al. 1995, which needs only the loss's value and gradient."""
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits

    options = {"maxiter": MAX_STEPS, "maxcor": 20, "gtol": TOLERANCE, "ftol": TOLERANCE / 1000}
    # The vectors are short, so more threads would mostly wait for each other; on a busy machine, for minutes.
    with threadpool_limits(1):
        found: Array = minimize(loss, begin, jac=True, method="L-BFGS-B", options=options).x
    return found


def times(rows: Sequence[Any], weights: Array) -> Array:
    """The product (n,) of blocks of columns with their weights (d,)."""
    ends = np.cumsum([block.shape[1] for block in rows])
    parts = zip(rows, np.split(weights, ends[:-1]), strict=True)
    product: Array = np.sum([block @ part for block, part in parts], axis=0)
    return product


def fit_platt(logits: Array, right: Array) -> tuple[float, float]:
    """(a, b) of sigmoid(a * logit + b), with Platt's smoothed targets (Platt 1999; Lin, Lin & Weng 2007), so that no
    probability is 0 or 1.

    (1, 0) if all rows are right, all are wrong, or all logits are equal. Logits that are higher for wrong answers are
    useless, so a is never below 0.
    """
    rights = float(right.sum())
    wrongs = len(right) - rights
    if rights == 0 or wrongs == 0 or np.ptp(logits) == 0:
        return 1.0, 0.0
    targets = np.where(right > 0.5, (rights + 1) / (rights + 2), 1 / (wrongs + 2))
    # A penalty much smaller than the data keeps the weights finite if the scores separate the classes perfectly.
    (fitted,) = fit_sides([logits[:, None]], [targets], np.array([1e-6]))
    if fitted.weights[0] < 0:
        return 0.0, float(np.log(targets.mean() / (1 - targets.mean())))
    return float(fitted.weights[0]), fitted.bias
