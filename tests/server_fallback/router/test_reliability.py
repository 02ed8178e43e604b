"""Metrics of predicted probabilities, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from nearfar.server_fallback.router.fitting.reliability import area_under_curve, calibration_error


def test_equal_scores_count_half() -> None:
    # There are four pairs of a right and a wrong answer: three are in order, and one is a tie.
    assert area_under_curve(np.array([0.1, 0.4, 0.4, 0.8]), np.array([0.0, 1.0, 0.0, 1.0])) == pytest.approx(3.5 / 4)


def test_the_auc_is_unknown_without_a_wrong_answer() -> None:
    assert area_under_curve(np.array([0.1, 0.4]), np.ones(2)) is None


def test_the_calibration_error_weighs_bins_by_what_is_in_them() -> None:
    # 0.1 twice, right once: off by 0.4. 0.9 twice and 1 once, always right: off by 0.2 in all.
    chances, right = np.array([0.1, 0.1, 0.9, 0.9, 1.0]), np.array([0.0, 1.0, 1.0, 1.0, 1.0])
    assert calibration_error(chances, right) == pytest.approx((0.8 + 0.2) / 5)
