"""Logistic regression with an L2 penalty, by scikit-learn; and Platt's calibration of its scores.

Nothing here is random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# From the largest down, so that each fit starts near its solution.
RIDGES = (30.0, 10.0, 3.0, 1.0, 0.3)
MAX_STEPS = 100
# Of the largest component of the mean loss's gradient.
TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class Logistic:
    """right = sigmoid(weights . row + bias)."""

    weights: Array
    bias: float

    def logits(self, rows: Any) -> Array:
        """rows (n, d), dense or sparse -> (n,)."""
        logits: Array = rows @ self.weights + self.bias
        return logits


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


def fit_logistic(rows: Any, right: Array, ridge: float, start: Logistic | None = None) -> Logistic:
    """The weights that minimise sum(cross entropy) + ridge / 2 * |weights|^2; the bias has no penalty. rows (n, d),
    dense or sparse, right (n,) -> (d,).

    If all rows are right or all are wrong, the weights are 0 and the bias is the logit of (rights + 1) / (n + 2). A
    ``start`` makes the fit faster and does not change its result.
    """
    rights = float(right.sum())
    if rights in (0.0, float(len(right))):
        bias = float(np.log((rights + 1) / (len(right) - rights + 1)))
        return Logistic(np.zeros(rows.shape[1]), bias)
    return minimum(rows, right > 0.5, ridge, start)


def minimum(
    rows: Any, right: npt.NDArray[np.bool_], ridge: float, start: Logistic | None = None, weights: Array | None = None
) -> Logistic:
    """As `fit_logistic`; ``weights`` (n,) are how often each row counts."""
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    # Newton's method with conjugate gradients needs only products with the rows, which may be sparse.
    regression = LogisticRegression(
        C=1 / ridge, solver="newton-cg", tol=TOLERANCE, max_iter=MAX_STEPS, warm_start=start is not None
    )
    if start is not None:
        regression.coef_, regression.intercept_ = start.weights[None].copy(), np.array([start.bias])
    # The vectors are short, so more threads would mostly wait for each other.
    with threadpool_limits(1):
        regression.fit(rows, right, sample_weight=weights)
    return Logistic(regression.coef_[0], float(regression.intercept_[0]))


@dataclass(frozen=True, slots=True)
class Fold:
    """``rows`` (n, d) of all pairs, dense or sparse, as they look to a fit on the others; ``held_out`` (n,) are those
    of the fold. d differs between folds.
    """

    rows: Any
    held_out: npt.NDArray[np.bool_]


def fit_cross_validated(
    rows: Any,
    right: Array,
    folds: Sequence[Fold],
    ridges: Sequence[float] = RIDGES,
    advance: Callable[[], None] = lambda: None,
) -> CrossValidated:
    """A regression on all rows (n, d), with the penalty that has the smallest cross entropy on rows that it was not
    fitted on. Every row is held out by one fold. ``advance`` is called after each fold.
    """
    held_out = {ridge: np.zeros(len(right)) for ridge in ridges}
    for fold in folds:
        inside, fitted = ~fold.held_out, None
        rows_inside, rows_outside = fold.rows[inside], fold.rows[fold.held_out]
        for ridge in ridges:
            fitted = fit_logistic(rows_inside, right[inside], ridge, fitted)
            held_out[ridge][fold.held_out] = fitted.logits(rows_outside)
        advance()
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
    # Each row counts as right by its target, and as wrong by the rest. A penalty much smaller than the data keeps the
    # weights finite if the scores separate the classes perfectly.
    both = np.repeat([True, False], len(right))
    fitted = minimum(np.tile(logits, 2)[:, None], both, 1e-6, weights=np.append(targets, 1 - targets))
    if fitted.weights[0] < 0:
        return 0.0, float(np.log(targets.mean() / (1 - targets.mean())))
    return float(fitted.weights[0]), fitted.bias
