"""Logistic regression with an L2 penalty, by Newton's method; and Platt's calibration of its scores.

Nothing here is random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# From the largest down, so that each fit starts near its solution.
RIDGES = (30.0, 10.0, 3.0, 1.0, 0.3)
MAX_STEPS = 50
TOLERANCE = 1e-7
# If the classes are perfectly separable, a bias without a penalty would grow forever.
MIN_CURVATURE = 1e-9


@dataclass(frozen=True, slots=True)
class Logistic:
    """right = sigmoid(weights . row + bias)."""

    weights: Array
    bias: float

    def logits(self, rows: Array) -> Array:
        """rows (n, d) -> (n,)."""
        return rows @ self.weights + self.bias


@dataclass(frozen=True, slots=True)
class CrossValidated:
    """A regression on all rows, the penalty that cross-validation chose for it, and for each row the logit (n,) of a
    regression on the other folds.
    """

    regression: Logistic
    ridge: float
    out_of_fold: Array


def sigmoid(logits: Array) -> Array:
    # In this form neither end overflows.
    return 0.5 * (1.0 + np.tanh(0.5 * logits))


def log_loss(logits: Array, right: Array) -> float:
    """Mean cross entropy in nats; right (n,) is 0, 1 or between."""
    return float(np.mean(np.logaddexp(0.0, logits) - right * logits))


def fit_logistic(rows: Array, right: Array, ridge: float, start: Logistic | None = None) -> Logistic:
    """The weights that minimise sum(cross entropy) + ridge / 2 * |weights|^2; the bias has no penalty. rows (n, d),
    right (n,) -> (d,).

    If all rows are right or all are wrong, the weights are 0 and the bias is the logit of (rights + 1) / (n + 2). A
    ``start`` makes the fit faster and does not change its result.
    """
    count, width = len(rows), int(rows.shape[1])
    rights = float(right.sum())
    bias = float(np.log((rights + 1) / (count - rights + 1)))
    point = np.append(np.zeros(width), bias)
    if rights in (0.0, float(count)):
        return Logistic(point[:width], bias)
    if start is not None:
        point = np.append(start.weights, start.bias)
    x = np.hstack([rows, np.ones((count, 1))])
    penalty = np.append(np.full(width, ridge), 0.0)

    def loss(at: Array) -> float:
        return count * log_loss(x @ at, right) + 0.5 * float(np.sum(penalty * at**2))

    value = loss(point)
    for _ in range(MAX_STEPS):
        probability = sigmoid(x @ point)
        gradient = x.T @ (probability - right) + penalty * point
        hessian = (x * (probability * (1 - probability))[:, None]).T @ x + np.diag(penalty + MIN_CURVATURE)
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        # Far from the minimum a full step may overshoot it.
        while (new := loss(point - size * step)) > value and size > 1e-6:
            size /= 2
        point = point - size * step
        if value - new <= TOLERANCE * abs(value):
            break
        value = new
    return Logistic(point[:width], float(point[width]))


@dataclass(frozen=True, slots=True)
class Fold:
    """``rows`` (n, d) of all pairs, as they look to a fit on the others; ``held_out`` (n,) are those of the fold. d
    differs between folds.
    """

    rows: Array
    held_out: npt.NDArray[np.bool_]


def fit_cross_validated(
    rows: Array, right: Array, folds: Sequence[Fold], ridges: Sequence[float] = RIDGES
) -> CrossValidated:
    """A regression on all rows (n, d), with the penalty that has the smallest cross entropy on rows that it was not
    fitted on. Every row is held out by one fold.
    """
    held_out = {ridge: np.zeros(len(right)) for ridge in ridges}
    for fold in folds:
        inside, fitted = ~fold.held_out, None
        for ridge in ridges:
            fitted = fit_logistic(fold.rows[inside], right[inside], ridge, fitted)
            held_out[ridge][fold.held_out] = fitted.logits(fold.rows[fold.held_out])
    best = min(ridges, key=lambda ridge: log_loss(held_out[ridge], right))
    return CrossValidated(fit_logistic(rows, right, best), best, held_out[best])


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
    fitted = fit_logistic(logits[:, None], targets, 1e-6)
    if fitted.weights[0] < 0:
        return 0.0, float(np.log(targets.mean() / (1 - targets.mean())))
    return float(fitted.weights[0]), fitted.bias
