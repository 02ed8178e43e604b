"""What a fit reads: as much as groups bear out that it has not seen."""

from __future__ import annotations

import random

import numpy as np
import pytest
from made_pairs import made_pairs

from nearfar.server_fallback.router.fitting.design import make_design, make_folds
from nearfar.server_fallback.router.fitting.fit import fit
from nearfar.server_fallback.router.fitting.pairs import FarAnswer, NearAnswer, Pair, rights
from nearfar.server_fallback.router.fitting.penalties import GAIN_OF_LENGTH, STEPS, Penalties, choose_penalties, is_less
from nearfar.server_fallback.router.fitting.scores import gains
from nearfar.server_fallback.router.fitting.table import read_table


def chosen(pairs: list[Pair]) -> Penalties:
    table = read_table(pairs)
    steps = list[None]()
    found = choose_penalties(make_folds(table), rights(pairs), table.groups, lambda: steps.append(None))
    assert len(steps) == STEPS
    return found.penalties


def pair(prompt: str, near: bool, far: bool, group: str | None = None) -> Pair:
    return Pair(
        prompt=prompt,
        group=group,
        near=NearAnswer(answer="", right=near, seconds=0.0),
        far=FarAnswer(answer="", right=far, seconds=0.0),
    )


def topics(count: int, of_topic: bool, seed: int = 0) -> list[Pair]:
    """Pairs of 12 topics, each with words of its own. Near fails on some topics, or (without ``of_topic``) on prompts
    with many numbers, whatever their topic; far fails on a tenth of the prompts.
    """
    rng = random.Random(seed)
    pairs = []
    for index in range(count):
        topic = index % 12
        words = [f"{chr(97 + topic)}{rng.choice('bcdfg')}o" for _ in range(8)]
        hard = rng.random() < 0.5
        numbers = [str(rng.randrange(100)) for _ in range(6 if hard else 1)]
        fails = topic % 2 == 0 if of_topic else hard
        prompt = " ".join([*words, *numbers])
        pairs.append(pair(prompt, rng.random() < (0.2 if fails else 0.9), rng.random() < 0.9, f"topic {topic}"))
    return pairs


def test_words_that_decide_are_read_and_for_each_side_by_itself() -> None:
    found = chosen(made_pairs(400))
    assert found.terms is not None
    # Far is as good at hard prompts as at easy ones, so the sides differ.
    assert found.apart < 10


def noise(count: int) -> list[Pair]:
    rng = random.Random(0)
    nears = [pair(each.prompt, rng.random() < 0.6, True) for each in made_pairs(count)]
    return [each.model_copy(update={"far": pair("", True, rng.random() < 0.8).far}) for each in nears]


def test_words_that_say_nothing_are_not_read() -> None:
    assert chosen(noise(300)).terms is None


def test_a_fit_begins_with_a_gain_that_rises_with_the_length() -> None:
    pairs = noise(60)
    table = read_table(pairs)
    design = make_design(table)
    near, far = Penalties().fit(design.rows(table), rights(pairs))
    difference = dict(zip(design.features, far.weights - near.weights, strict=True))
    assert difference.pop("characters") == pytest.approx(GAIN_OF_LENGTH, abs=0.01)
    assert list(difference.values()) == pytest.approx(np.zeros(len(difference)), abs=0.01)


def test_pairs_in_which_short_prompts_need_far_outweigh_the_length() -> None:
    rng = random.Random(0)
    pairs = [pair("word " * count, rng.random() < (0.2 if count < 10 else 0.9), True) for count in [*range(1, 20)] * 6]
    short, long = gains(fit(pairs).predictor, [pair("word " * count, True, True) for count in (3, 16)])
    assert short > long + 0.3


def test_words_of_the_topics_are_not_read_if_no_new_topic_bears_them_out() -> None:
    pairs = topics(480, of_topic=True)
    assert chosen(pairs).terms is None
    # Without groups the same topics are on both sides of a fold, and their words count.
    assert chosen([each.model_copy(update={"group": None}) for each in pairs]).terms is not None


def test_what_topics_share_predicts_new_topics() -> None:
    pairs = topics(480, of_topic=False)
    new = [each.model_copy(update={"prompt": each.prompt.translate(SHIFTED)}) for each in topics(240, False, seed=1)]
    scores = gains(fit(pairs).predictor, new)
    hard = np.array([sum(word.isdigit() for word in each.prompt.split()) > 1 for each in new])
    assert scores[hard].min() > scores[~hard].max()


# The letters of topics to others.
SHIFTED = str.maketrans({chr(97 + index): chr(97 + (index + 13) % 26) for index in range(26)})


@pytest.mark.parametrize(("groups", "less"), [(np.arange(4), True), (np.array([0, 0, 0, 1]), False)])
def test_a_difference_counts_if_it_is_beyond_its_standard_error_over_groups(groups: np.ndarray, less: bool) -> None:
    # The mean is 0.2. Its standard error is 0.177 over four pairs, and 0.212 over groups of three and one.
    errors, others = np.zeros(4), np.array([0.5, 0.4, 0.3, -0.4])
    assert is_less(errors, others, groups) is less
    assert not is_less(errors, errors, groups)
