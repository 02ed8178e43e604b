"""The design matrix of regressions, and folds that hold out complete groups."""

from __future__ import annotations

import numpy as np
import pytest
from made_pairs import made_pairs
from scipy.sparse import issparse

from nearfar.server_fallback.router.decision.predictor import Calibration
from nearfar.server_fallback.router.fitting import design as designs
from nearfar.server_fallback.router.fitting.design import make_design, make_folds
from nearfar.server_fallback.router.fitting.fit import make_predictor
from nearfar.server_fallback.router.fitting.logistic import Logistic, sigmoid
from nearfar.server_fallback.router.fitting.penalties import Penalties
from nearfar.server_fallback.router.fitting.table import read_table

PAIRS = made_pairs(60)


@pytest.mark.parametrize("penalties", [Penalties(), Penalties(terms=1.0)])
def test_a_row_of_the_design_is_what_the_predictor_reads(penalties: Penalties) -> None:
    design = make_design(read_table(PAIRS, signals=True))
    foreign = PAIRS[0].model_copy(update={"prompt": "solve 1, 2 and 30000; then say lamp to nobody!"})
    both = [*PAIRS, foreign]
    rows = penalties.read(design.rows(read_table(both, signals=True)))
    line = Logistic(np.random.default_rng(0).normal(size=sum(block.shape[1] for block in rows)), 0.25)
    predictor = make_predictor(design, penalties, [line, line], Calibration(near=(1.0, 0.0), far=(0.5, 1.0)))
    rights = predictor.rights(*((pair.prompt, pair.near.signals, None) for pair in both))
    logits = line.logits(rows)
    # A policy's numbers have 6 digits.
    assert sigmoid(logits) == pytest.approx([each.near for each in rights], abs=1e-4)
    assert sigmoid(0.5 * logits + 1.0) == pytest.approx([each.far for each in rights], abs=1e-4)
    # A policy contains nothing that it does not read.
    assert predictor.terms == (() if penalties.terms is None else design.terms)


def test_terms_of_foreign_words_count_less() -> None:
    design = make_design(read_table(PAIRS))
    column = design.terms.index("solve")
    texts = ("solve lamp", "solve quokkas quickly")
    known, foreign = design.rows(read_table([PAIRS[0].model_copy(update={"prompt": text}) for text in texts]))[
        "terms"
    ].toarray()
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
    assert make_design(read_table(grouped)).terms == ("two",)
    # A pair that is drawn again is still one group.
    alone = read_table([PAIRS[0].model_copy(update={"prompt": "once"}), *PAIRS[:3]])
    assert "once" not in make_design(alone.take(np.array([0, 0, 0, 1, 2, 3]))).terms


def test_a_policy_has_the_commonest_terms_that_it_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = make_design(read_table(PAIRS)).terms
    monkeypatch.setattr(designs, "MAX_TERMS", 3)
    terms = make_design(read_table(PAIRS)).terms
    assert len(everything) > 3
    assert terms == tuple(sorted(terms))
    counts = {term: sum(term in pair.prompt for pair in PAIRS) for term in everything}
    assert min(counts[term] for term in terms) >= max(counts[term] for term in everything if term not in terms)


def test_no_step_makes_a_dense_matrix_of_terms() -> None:
    table = read_table(PAIRS)
    assert issparse(table.counts)
    assert issparse(make_design(table).rows(table)["terms"])
    assert all(issparse(rows["terms"]) for fold in make_folds(table) for rows in (fold.fitted, fold.asked))


def test_a_group_is_never_on_both_sides_of_a_fold() -> None:
    groups = np.array([index % 7 for index in range(60)])
    grouped = [pair.model_copy(update={"group": f"g{group}"}) for pair, group in zip(PAIRS, groups, strict=True)]
    folds = make_folds(read_table(grouped))
    assert np.sum([fold.held_out for fold in folds], axis=0).tolist() == [1] * 60
    for fold in folds:
        assert set(groups[fold.held_out]).isdisjoint(groups[~fold.held_out])
    assert [fold.held_out.tolist() for fold in make_folds(read_table(PAIRS))] == [
        [index % 5 == fold for index in range(60)] for fold in range(5)
    ]


def test_a_fold_reads_no_term_of_the_group_that_it_holds_out() -> None:
    secret = [PAIRS[0].model_copy(update={"prompt": "xyzzy", "group": "g0"}) for _ in range(4)]
    grouped = [*secret, *(pair.model_copy(update={"group": f"g{index % 9}"}) for index, pair in enumerate(PAIRS, 1))]
    held_out = next(fold for fold in make_folds(read_table(grouped)) if fold.held_out[0])
    inside = [pair for pair, out in zip(grouped, held_out.held_out, strict=True) if not out]
    design = make_design(read_table(inside))
    assert "xyzzy" not in design.terms
    assert not held_out.asked["terms"].toarray()[0].any()
