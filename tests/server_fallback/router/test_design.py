"""The design matrix of regressions, and folds that hold out complete groups."""

from __future__ import annotations

import numpy as np
import pytest
from made_pairs import made_pairs

from nearfar.server_fallback.router.decision.predictor import Calibration
from nearfar.server_fallback.router.fitting.design import make_design, make_folds
from nearfar.server_fallback.router.fitting.fit import make_predictor
from nearfar.server_fallback.router.fitting.logistic import Logistic

PAIRS = made_pairs(60)


def test_a_row_of_the_design_is_what_the_predictor_reads() -> None:
    design = make_design(PAIRS, signals=True)
    width = len(design.features) + len(design.terms)
    line = Logistic(np.zeros(width), 0.0)
    predictor = make_predictor(design, line, line, Calibration(near=(1.0, 0.0), far=(1.0, 0.0)))
    foreign = PAIRS[0].model_copy(update={"prompt": "solve 1, 2 and 30000; then say lamp to nobody!"})
    for pair, row in zip([*PAIRS, foreign], design.rows([*PAIRS, foreign]), strict=True):
        inputs = np.zeros(width)
        for index, value in predictor.inputs(pair.prompt, pair.near.signals):
            inputs[index] = value
        # A policy's numbers have 6 digits.
        assert row == pytest.approx(inputs, rel=1e-4, abs=1e-4)


def test_terms_of_foreign_words_count_less() -> None:
    design = make_design(PAIRS)
    column = len(design.features) + design.terms.index("solve")
    known, foreign = design.rows(
        [PAIRS[0].model_copy(update={"prompt": text}) for text in ("solve lamp", "solve quokkas quickly")]
    )
    assert known[column] == 1.0
    # Three words and their two bigrams, one of which is known.
    assert foreign[column] == pytest.approx(1 / 5)


def test_a_term_needs_three_pairs_and_two_groups() -> None:
    grouped = [
        PAIRS[0].model_copy(update={"prompt": prompt, "group": group})
        for prompt, group in [
            ("rare", "a"),
            ("rare", "b"),
            *[("one", "a")] * 5,
            ("two", "a"),
            ("two", "a"),
            ("two", "b"),
        ]
    ]
    assert make_design(grouped).terms == ("two",)


def test_a_group_is_never_on_both_sides_of_a_fold() -> None:
    groups = np.array([index % 7 for index in range(60)])
    grouped = [pair.model_copy(update={"group": f"g{group}"}) for pair, group in zip(PAIRS, groups, strict=True)]
    folds = make_folds(grouped)
    assert np.sum([fold.held_out for fold in folds], axis=0).tolist() == [1] * 60
    for fold in folds:
        assert set(groups[fold.held_out]).isdisjoint(groups[~fold.held_out])
    assert [fold.held_out.tolist() for fold in make_folds(PAIRS)] == [
        [index % 5 == fold for index in range(60)] for fold in range(5)
    ]


def test_a_fold_reads_no_term_of_the_group_that_it_holds_out() -> None:
    secret = [PAIRS[0].model_copy(update={"prompt": "xyzzy", "group": "g0"}) for _ in range(4)]
    grouped = [*secret, *(pair.model_copy(update={"group": f"g{index % 9}"}) for index, pair in enumerate(PAIRS, 1))]
    held_out = next(fold for fold in make_folds(grouped) if fold.held_out[0])
    design = make_design([pair for pair, out in zip(grouped, held_out.held_out, strict=True) if not out])
    assert "xyzzy" not in design.terms
    assert not held_out.rows[0, len(design.features) :].any()
