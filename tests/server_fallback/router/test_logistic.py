"""The regression against known weights, and against its own conditions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from nearfar.server_fallback.router.fitting.logistic import (
    INDEPENDENT,
    Array,
    Logistic,
    constant_side,
    fit_platt,
    fit_sides,
    sigmoid,
)


def drawn(count: int, weights: Array, bias: float) -> tuple[Array, Array]:
    """Normally distributed rows, with results drawn by the probabilities of the weights."""
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((count, len(weights)))
    return rows, (rng.random(count) < sigmoid(rows @ weights + bias)).astype(np.float64)


def fit_logistic(rows: Array, right: Array, ridge: float) -> Logistic:
    (found,) = fit_sides([rows], [right], np.full(rows.shape[1], ridge))
    return found


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
    wrong = sigmoid(found.logits([rows])) - right
    assert rows.T @ wrong + ridge * found.weights == pytest.approx(np.zeros(4), abs=1e-2)
    assert wrong.sum() == pytest.approx(0, abs=1e-2)


def test_separable_classes_have_finite_weights() -> None:
    rows = np.array([[-1.0], [-0.5], [0.5], [1.0]])
    found = fit_logistic(rows, np.array([0.0, 0.0, 1.0, 1.0]), 1e-3)
    assert np.isfinite(found.weights).all()
    assert (found.logits([rows]) > 0).tolist() == [False, False, True, True]


@pytest.mark.parametrize(("rights", "bias"), [(0, np.log(1 / 9)), (8, np.log(9 / 1))])
def test_only_a_bias_remains_if_all_rows_are_alike(rights: int, bias: float) -> None:
    right = np.array([1.0] * rights + [0.0] * (8 - rights))
    found = fit_logistic(np.eye(8), right, 1.0)
    assert found.weights.tolist() == [0.0] * 8
    assert found.bias == pytest.approx(bias)
    assert fit_platt(found.logits([np.eye(8)]), right) == (1.0, 0.0)


def test_sides_that_are_not_held_together_are_fitted_each_by_itself() -> None:
    rows, near = drawn(200, np.array([1.0, -2.0]), 0.0)
    far = drawn(200, np.array([0.5, 1.0]), 1.0)[1]
    both = fit_sides([rows], [near, far], np.array([4.0, 4.0]), INDEPENDENT)
    for side, right in zip(both, (near, far), strict=True):
        # The penalty on the mean of both counts half for each of them.
        alone = fit_logistic(rows, right, 2.0)
        assert side.weights == pytest.approx(alone.weights, abs=1e-3)
        assert side.bias == pytest.approx(alone.bias, abs=1e-3)


def test_sides_that_are_held_together_share_their_weights_and_not_their_biases() -> None:
    rows, near = drawn(2000, np.array([1.0, -2.0]), -1.0)
    far = drawn(2000, np.array([1.2, -1.5]), 1.0)[1]
    loose, tight = (fit_sides([rows], [near, far], np.ones(2), apart) for apart in (1.0, 1e7))
    assert tight[0].weights == pytest.approx(tight[1].weights, abs=1e-3)
    assert np.abs(loose[0].weights - loose[1].weights).max() > 0.1
    assert tight[1].bias - tight[0].bias > 1


def test_a_difference_stays_where_it_is_expected_unless_the_rows_show_otherwise() -> None:
    rows, near = drawn(2000, np.array([1.0, -2.0]), -1.0)
    far = drawn(2000, np.array([2.0, -2.0]), 1.0)[1]
    expected = np.array([-0.5, 0.25])

    def difference(apart: float, start: list[Logistic] | None = None) -> Array:
        near_side, far_side = fit_sides([rows], [near, far], np.ones(2), apart, start, expected)
        found: Array = far_side.weights - near_side.weights
        return found

    assert difference(1e7) == pytest.approx(expected, abs=1e-3)
    assert difference(1.0) == pytest.approx([1.0, 0.0], abs=0.3)
    start = fit_sides([rows], [near, far], np.ones(2), 1.0)
    assert difference(1e7, start) == pytest.approx(expected, abs=1e-3)


def test_blocks_of_columns_are_one_matrix_and_a_start_changes_nothing() -> None:
    rows, near = drawn(300, np.array([1.0, -2.0, 0.5]), 0.0)
    far = drawn(300, np.array([0.5, 1.0, 0.0]), 1.0)[1]
    penalties = np.array([1.0, 5.0, 5.0])
    whole = fit_sides([rows], [near, far], penalties, 3.0)
    start = fit_sides([rows], [near, far], penalties * 100, 30.0)
    blocks = fit_sides([rows[:, :1], csr_array(rows[:, 1:])], [near, far], penalties, 3.0, start)
    for one, other in zip(whole, blocks, strict=True):
        assert other.weights == pytest.approx(one.weights, abs=1e-3)
        assert other.logits([rows[:, :1], csr_array(rows[:, 1:])]) == pytest.approx(one.logits([rows]), abs=1e-2)


def test_a_side_without_mistakes_leaves_the_other_one_alone() -> None:
    rows, near = drawn(100, np.array([1.0, 1.0]), 0.0)
    found = fit_sides([rows], [near, np.ones(100)], np.array([2.0, 2.0]), 1000.0)
    assert found[1].weights.tolist() == [0.0, 0.0]
    assert found[1].bias == constant_side(np.ones(100), 2).bias == pytest.approx(np.log(101))
    assert found[0].weights == pytest.approx(fit_logistic(rows, near, 1.0).weights, abs=1e-4)


def test_misleading_scores_are_not_inverted() -> None:
    logits, right = np.array([2.0, 1.0, -1.0, -2.0]), np.array([0.0, 0.0, 1.0, 1.0])
    assert fit_platt(logits, right) == pytest.approx((0.0, 0.0))


def test_calibration_corrects_overconfident_scores() -> None:
    rows, right = drawn(20_000, np.array([2.0]), 0.3)
    honest = rows[:, 0] * 2.0 + 0.3
    a, b = fit_platt(3.0 * honest + 1.0, right)
    assert (a, b) == pytest.approx((1 / 3, -1 / 3), abs=0.05)

    def log_loss(logits: Array) -> float:
        return float(np.mean(np.logaddexp(0.0, logits) - right * logits))

    assert log_loss(a * (3.0 * honest + 1.0) + b) <= log_loss(honest) + 1e-6
