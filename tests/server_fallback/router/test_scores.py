"""The scores of the baselines, and of refits."""

from __future__ import annotations

import numpy as np
import pytest
from made_pairs import made_pairs

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.router.decision.policy import Policy
from nearfar.server_fallback.router.fitting.fit import fit
from nearfar.server_fallback.router.fitting.refits import scores_of_refits
from nearfar.server_fallback.router.fitting.scores import all_scores, gains, hand_rule

PAIRS, NEW = made_pairs(80), made_pairs(40, seed=1)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("", 0),
        ("turn on the light", 0),
        ("What is 27 + 58?", 3),
        ("48217 + 9345", 3),
        ("light off and lock the door, then stop. Then play jazz.", 5),
        ("sandy athens", 0),
    ],
)
def test_the_hand_rule_counts_signs_of_hard_prompts(text: str, score: int) -> None:
    assert hand_rule(text) == score


def test_the_task_oracle_knows_the_mean_gain_of_each_task() -> None:
    predictor = fit(PAIRS).predictor
    policy = Policy.read({"version": 1, "mode": "auto", "quality": {"predictor": predictor.model_dump(mode="json")}})
    assert list(all_scores(NEW, policy)) == ["auto", "random", "length", "rule", "confidence", "oracle"]
    tasks = ["a", "a", "b"]
    three = [pair.model_copy(update={"task": task}) for pair, task in zip(NEW, tasks, strict=False)]
    scores = all_scores(three, policy)
    assert list(scores) == ["auto", "random", "length", "rule", "confidence", "task", "oracle"]
    assert scores["task"] == pytest.approx([scores["oracle"][:2].mean()] * 2 + [scores["oracle"][2]])
    assert scores["auto"] == pytest.approx(gains(predictor, three))


def test_refits_to_other_pairs_are_refused() -> None:
    with pytest.raises(RequestError, match="fitted on 80 pairs, but these are 40"):
        scores_of_refits(NEW, fit(PAIRS).predictor, NEW, 1)


def test_refits_differ_and_lie_around_the_fit() -> None:
    predictor = fit(PAIRS).predictor
    refits = scores_of_refits(PAIRS, predictor, NEW, 4)
    assert refits.shape == (4, 40)
    assert np.ptp(refits, axis=0).max() > 0.001
    assert refits == pytest.approx(scores_of_refits(PAIRS, predictor, NEW, 4))
    hard = np.array(["solve" in pair.prompt for pair in NEW])
    for refit in refits:
        assert refit[hard].min() > refit[~hard].max()
