"""Fitting on simulated pairs whose truth is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_pairs import made_pairs

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.router.decision.policy import Policy
from nearfar.server_fallback.router.decision.predictor import Wanted, feature_names
from nearfar.server_fallback.router.fitting.fit import FitResult, choose_threshold, fit

DEMO_POLICY = Path(__file__).parents[3] / "server_fallback/router/fitting/demo_policy.json"

PAIRS = made_pairs(400)


@pytest.fixture(scope="module")
def fitted() -> FitResult:
    return fit(PAIRS)


def test_a_predictor_learns_who_is_right(fitted: FitResult) -> None:
    easy, hard = fitted.predictor.rights(*((prompt, None, None) for prompt in ("say lamp door", "solve lamp door")))
    assert easy.near > 0.85
    assert hard.near < 0.25
    assert (easy.far, hard.far) == pytest.approx((0.9, 0.9), abs=0.07)
    assert fitted.near.auc is not None
    assert fitted.near.auc > 0.9
    assert fitted.near.calibration_error < 0.1
    assert fitted.threshold == 0


def test_the_report_names_the_words_that_decide(fitted: FitResult) -> None:
    assert {'"say"', '"solve"'} <= {name for name, _ in fitted.near.top}


def test_probabilities_are_calibrated_on_new_pairs(fitted: FitResult) -> None:
    new = made_pairs(2000, seed=1)
    chances = np.array(
        [each.near for each in fitted.predictor.rights(*((pair.prompt, pair.near.signals, None) for pair in new))]
    )
    right = np.array([pair.near.right for pair in new])
    for least, most in ((0.0, 0.5), (0.5, 1.0)):
        inside = (chances >= least) & (chances < most)
        assert chances[inside].mean() == pytest.approx(right[inside].mean(), abs=0.04)


def test_signals_are_features_only_on_request_and_if_a_pair_has_them(fitted: FitResult) -> None:
    assert set(feature_names()["signals"]).isdisjoint(fitted.predictor.features)
    found = fit(made_pairs(100), signals=True).predictor
    # No pair has a log-probability of its prompt.
    assert found.features == (*feature_names()["text"], "first_entropy", "first_mean_logprob")
    with pytest.raises(RequestError, match="no pair has near's signals"):
        fit(made_pairs(100, signals=False), signals=True)


def test_the_threshold_meets_the_far_share_or_the_quality() -> None:
    # Best first: two that gain, one that is equal, one that loses. Near is right on half.
    gains, near, far = np.array([0.9, -0.5, 0.4, 0.1]), np.array([0.0, 1.0, 0.0, 1.0]), np.array([1.0, 0.0, 1.0, 1.0])

    def sent(**wanted: float) -> list[bool]:
        threshold = choose_threshold(gains, near, far, Wanted(**wanted))
        return [bool(each) for each in gains > threshold]

    assert sent(far_share=0.0) == [False] * 4
    assert sent(far_share=0.49) == [True, False, False, False]
    assert sent(far_share=0.75) == [True, False, True, True]
    assert sent(far_share=1.0) == [True] * 4
    assert sent(quality=0.5) == [False] * 4
    assert sent(quality=0.6) == [True, False, False, False]
    assert sent(quality=1.0) == [True, False, True, False]


def test_prompts_with_equal_gains_go_to_the_same_side() -> None:
    threshold = choose_threshold(np.array([0.5, 0.5, 0.1]), np.zeros(3), np.ones(3), Wanted(far_share=0.4))
    assert threshold >= 0.5


def test_the_error_for_an_unreachable_quality_names_the_maximum() -> None:
    with pytest.raises(RequestError, match=r"at most 0\.\d+ on these pairs, so 1\.0 is out of reach"):
        fit(made_pairs(100), wanted=Wanted(quality=1.0))


def test_a_side_that_is_always_right_gets_a_high_probability() -> None:
    pairs = [pair.model_copy(update={"far": pair.far.model_copy(update={"right": True})}) for pair in PAIRS[:50]]
    found = fit(pairs)
    assert found.far.auc is None
    assert found.predictor.rights(("solve", None, None))[0].far == pytest.approx(51 / 52)


def test_too_few_pairs_are_an_error() -> None:
    with pytest.raises(RequestError, match="19 pairs are too few"):
        fit(PAIRS[:19])


def test_the_demo_policy_predicts_what_near_cannot_do() -> None:
    policy = Policy.read(DEMO_POLICY)
    assert policy.quality.predictor is not None
    assert set(feature_names()["signals"]).isdisjoint(policy.quality.predictor.features)
    easy, hard = policy.quality.predictor.rights(
        ("turn off the bedroom light", None, None), ("what is 12 + 30 + 7 + 41?", None, None)
    )
    assert easy.near > 0.8
    assert hard.near < 0.2
    assert hard.far - hard.near > policy.quality.threshold > easy.far - easy.near
