"""The regression against known weights, and against its own conditions."""

from __future__ import annotations

import numpy as np
import pytest

from nearfar.server_fallback.router.fitting.logistic import (
    RIDGES,
    Array,
    Fold,
    fit_cross_validated,
    fit_logistic,
    fit_platt,
    log_loss,
    sigmoid,
)


def drawn(count: int, weights: Array, bias: float) -> tuple[Array, Array]:
    """Normally distributed rows, with results drawn by the probabilities of the weights."""
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((count, len(weights)))
    return rows, (rng.random(count) < sigmoid(rows @ weights + bias)).astype(np.float64)


def folds(rows: Array) -> list[Fold]:
    return [Fold(rows, np.arange(len(rows)) % 5 == fold) for fold in range(5)]


def test_known_weights_are_recovered() -> None:
    weights = np.array([1.5, -2.0, 0.0])
    rows, right = drawn(20_000, weights, 0.5)
    found = fit_logistic(rows, right, 1e-3)
    # Standard errors are about 0.03.
    assert found.weights == pytest.approx(weights, abs=0.1)
    assert found.bias == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("ridge", [1e-3, 1.0, 100.0])
def test_the_fit_is_a_minimum_in_every_direction(ridge: float) -> None:
    rows, right = drawn(300, np.array([3.0, -1.0, 0.5, 0.0]), -1.0)
    found = fit_logistic(rows, right, ridge)
    wrong = sigmoid(found.logits(rows)) - right
    assert rows.T @ wrong + ridge * found.weights == pytest.approx(np.zeros(4), abs=1e-2)
    assert wrong.sum() == pytest.approx(0, abs=1e-2)


def test_separable_classes_have_finite_weights() -> None:
    rows = np.array([[-1.0], [-0.5], [0.5], [1.0]])
    found = fit_logistic(rows, np.array([0.0, 0.0, 1.0, 1.0]), 1e-3)
    assert np.isfinite(found.weights).all()
    assert (found.logits(rows) > 0).tolist() == [False, False, True, True]


@pytest.mark.parametrize(("rights", "bias"), [(0, np.log(1 / 9)), (8, np.log(9 / 1))])
def test_only_a_bias_remains_if_all_rows_are_alike(rights: int, bias: float) -> None:
    right = np.array([1.0] * rights + [0.0] * (8 - rights))
    found = fit_logistic(np.eye(8), right, 1.0)
    assert found.weights.tolist() == [0.0] * 8
    assert found.bias == pytest.approx(bias)
    assert fit_platt(found.logits(np.eye(8)), right) == (1.0, 0.0)


def test_noise_gets_the_largest_penalty_and_a_signal_a_small_one() -> None:
    rows, right = drawn(400, np.array([4.0, 0.0]), 0.0)
    noise = np.random.default_rng(6).random(400) < 0.5
    assert fit_cross_validated(rows, right, folds(rows)).ridge == min(RIDGES)
    assert fit_cross_validated(rows, noise.astype(np.float64), folds(rows)).ridge == max(RIDGES)


def test_out_of_fold_logits_come_from_other_rows() -> None:
    rows, right = drawn(50, np.array([1.0, 1.0]), 0.0)
    chosen = fit_cross_validated(rows, right, folds(rows), [1.0])
    others = np.arange(50) % 5 != 3
    assert chosen.out_of_fold[3::5] == pytest.approx(fit_logistic(rows[others], right[others], 1.0).logits(rows[3::5]))


def test_misleading_scores_are_not_inverted() -> None:
    logits, right = np.array([2.0, 1.0, -1.0, -2.0]), np.array([0.0, 0.0, 1.0, 1.0])
    assert fit_platt(logits, right) == pytest.approx((0.0, 0.0))


def test_calibration_corrects_overconfident_scores() -> None:
    rows, right = drawn(20_000, np.array([2.0]), 0.3)
    honest = rows[:, 0] * 2.0 + 0.3
    a, b = fit_platt(3.0 * honest + 1.0, right)
    assert (a, b) == pytest.approx((1 / 3, -1 / 3), abs=0.05)
    assert log_loss(a * (3.0 * honest + 1.0) + b, right) <= log_loss(honest, right) + 1e-6
