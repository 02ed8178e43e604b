"""Curves, APGR and CPT of four prompts, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.router.fitting.evaluation import evaluate

# Far is better on the first two, equal on the third, and worse on the last: near is right on half of them, far on three
# quarters.
NEAR, FAR = np.array([0.0, 0.0, 1.0, 1.0]), np.array([1.0, 1.0, 1.0, 0.0])
SCORES = {"made": np.array([4.0, 2.0, 1.0, 3.0]), "random": np.zeros(4), "oracle": FAR - NEAR}


def test_figures_of_a_router_computed_by_hand() -> None:
    made = evaluate(NEAR, FAR, SCORES, 3.5).policies["made"]
    assert made.curve.shares.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert made.curve.qualities.tolist() == [0.5, 0.75, 0.5, 0.75, 0.75]
    # PGR is 0, 1, 0, 1, 1.
    assert made.apgr == pytest.approx((0.5 + 0.5 + 0.5 + 1) / 4)
    assert (made.cpt50, made.cpt80) == pytest.approx((0.125, 0.2))


def test_equal_scores_are_a_random_router() -> None:
    random = evaluate(NEAR, FAR, SCORES, 3.5).policies["random"]
    assert (random.apgr, random.cpt50, random.cpt80) == pytest.approx((0.5, 0.5, 0.8))
    assert random.apgr_95 == pytest.approx((0.5, 0.5))
    assert random.quality == pytest.approx(0.5 + 0.25 * 0.25)


def test_an_oracle_recovers_more_than_the_gap() -> None:
    oracle = evaluate(NEAR, FAR, SCORES, 3.5).policies["oracle"]
    # PGR is 2 with half of the prompts far, stays so, and falls to 1 with the last.
    assert oracle.apgr == pytest.approx(0.5 * 1 + 0.25 * 2 + 0.25 * 1.5)
    assert (oracle.cpt50, oracle.cpt80) == pytest.approx((0.125, 0.2))


def test_a_threshold_sends_prompts_with_higher_scores_far() -> None:
    found = evaluate(NEAR, FAR, SCORES, 3.0)
    assert (found.far_share, found.quality) == (0.25, 0.75)
    assert (found.near_quality, found.far_quality, found.prompts) == (0.5, 0.75, 4)
    assert found.policies["oracle"].ahead == pytest.approx(0.625 - 1.375)


def test_intervals_contain_the_figure_and_shrink_with_more_prompts() -> None:
    def width(times: int) -> float:
        scores = {name: np.tile(each, times) for name, each in SCORES.items()}
        made = evaluate(np.tile(NEAR, times), np.tile(FAR, times), scores, 3.5).policies["made"]
        assert made.apgr_95[0] <= made.apgr <= made.apgr_95[1]
        return made.apgr_95[1] - made.apgr_95[0]

    assert width(400) < width(100) / 1.5


def test_refits_that_differ_widen_the_intervals_of_the_router_alone() -> None:
    tiled = {name: np.tile(each, 100) for name, each in SCORES.items()}
    near, far = np.tile(NEAR, 100), np.tile(FAR, 100)
    alone = evaluate(near, far, tiled, 3.5)
    # One refit equals the router, the other one reverses its order of prompts.
    both = evaluate(near, far, tiled, 3.5, np.stack([tiled["made"], -tiled["made"]]))
    opposite = evaluate(near, far, {"made": -tiled["made"]}, 3.5).policies["made"]
    assert (alone.refits, both.refits) == (0, 2)
    assert both.policies["made"].apgr == alone.policies["made"].apgr
    low, high = both.policies["made"].apgr_95
    assert low < opposite.apgr < alone.policies["made"].apgr_95[0]
    assert high > alone.policies["made"].apgr
    assert both.policies["oracle"].apgr_95 == alone.policies["oracle"].apgr_95
    assert both.policies["oracle"].ahead_95[0] < alone.policies["oracle"].ahead_95[0]


def test_equal_refits_change_nothing() -> None:
    tiled = {name: np.tile(each, 50) for name, each in SCORES.items()}
    near, far = np.tile(NEAR, 50), np.tile(FAR, 50)
    alone = evaluate(near, far, tiled, 3.5)
    refitted = evaluate(near, far, tiled, 3.5, np.stack([tiled["made"]] * 7))
    figures = refitted.to_json()
    assert figures.pop("refits") == 7
    assert {**figures, "refits": 0} == alone.to_json()


@pytest.mark.parametrize("far", [NEAR, np.array([0.0, 0.0, 1.0, 0.0])])
def test_without_a_gap_there_is_nothing_to_recover(far: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    with pytest.raises(RequestError, match=r"near side on 50\.0%: there is no gap to recover"):
        evaluate(NEAR, far, SCORES, 0.0)
