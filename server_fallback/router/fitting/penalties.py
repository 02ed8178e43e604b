"""Penalties: how much each block of a design, and the difference of both sides, may say; chosen by cross-validation.

The choice begins with the features alone, whose weights both sides share, and with a gain that rises with the length of
a prompt: on foreign prompts the length says more about the gain than most of what was learned elsewhere. It takes more
(another penalty of the features, vectors, terms, sides that differ) only if that makes the expected gain better on
groups that the fit has not seen, by more than the standard error of the difference over groups, as Breiman et al. 1984
prune trees. So a fit to few or to foreign pairs stays near the length, and words or vectors count if they help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np

from .design import Block, Fold, Rows
from .logistic import INDEPENDENT, Array, Logistic, fit_sides, sigmoid
from .table import Indices

# From the largest down, so that each fit starts near its solution.
RIDGES: Mapping[Block, Sequence[float]] = {
    "features": (300.0, 3.0),
    "vectors": (30.0, 10.0, 3.0, 1.0),
    "terms": (300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3),
}
# By how much far's logit less near's is expected to rise with a standard deviation of the length, unless the pairs show
# otherwise. It was chosen by holding out subjects of one half of MMLU; see "On public answers" in the router's README.
GAIN_OF_LENGTH = 0.25
APART = (1000.0, 30.0, 3.0, INDEPENDENT)
# With which new blocks are tried besides the chosen one: sides may differ in words of which they share the length.
APART_OF_BLOCKS = 3.0
# How often `choose_penalties` calls ``advance``.
STEPS = 4


@dataclass(frozen=True, slots=True)
class Penalties:
    """Of each weight, by block; a block whose penalty is None is not read. ``apart`` multiplies the penalties of the
    difference of both sides; see `fit_sides`.
    """

    features: float = 30.0
    vectors: float | None = None
    terms: float | None = None
    apart: float = APART[0]

    def blocks(self) -> list[tuple[Block, float]]:
        known: list[tuple[Block, float | None]] = [
            ("features", self.features),
            ("terms", self.terms),
            ("vectors", self.vectors),
        ]
        return [(block, penalty) for block, penalty in known if penalty is not None]

    def fit(self, rows: Rows, rights: Sequence[Array], start: Sequence[Logistic] | None = None) -> list[Logistic]:
        """The regression of each side on the blocks that are read, in their order."""
        each = [np.full(rows[block].shape[1], penalty) for block, penalty in self.blocks()]
        penalties = np.concatenate(each)
        expected = np.zeros(len(penalties))
        # The length is the first of the features, which are the first block.
        expected[0] = GAIN_OF_LENGTH
        return fit_sides(self.read(rows), rights, penalties, self.apart, start, expected)

    def read(self, rows: Rows) -> list[Array]:
        return [rows[block] for block, _ in self.blocks()]


@dataclass(frozen=True, slots=True)
class CrossValidated:
    """For each row the ``logits`` (2, n) of near and far from a fit on the other folds."""

    penalties: Penalties
    logits: Array

    def errors(self, rights: Sequence[Array]) -> Array:
        """The squared error (n,) of the expected gain, whose mean is least for the true one."""
        near, far = sigmoid(self.logits)
        errors: Array = (rights[1] - rights[0] - (far - near)) ** 2
        return errors


def choose_penalties(
    folds: Sequence[Fold], rights: Sequence[Array], groups: Indices, advance: Callable[[], None] = lambda: None
) -> CrossValidated:
    """``rights``: whether near and far were right, (n,) each; ``groups`` (n,) are numbers, as in `Table`."""

    def wrong(found: CrossValidated) -> float:
        return float(found.errors(rights).mean())

    def best_of(path: Iterable[Penalties]) -> CrossValidated | None:
        """Of a path, which ends where it gets no better."""
        best, starts = None, None
        for penalties in path:
            found, starts = cross_validate(folds, rights, penalties, starts)
            if best is not None and wrong(found) >= wrong(best):
                break
            best = found
        return best

    def better(chosen: CrossValidated, *paths: Iterable[Penalties]) -> CrossValidated:
        """The best of all paths, if it is less wrong than the chosen one for certain."""
        found = [best for best in map(best_of, paths) if best is not None]
        best = min(found, key=wrong, default=chosen)
        advance()
        return best if is_less(best.errors(rights), chosen.errors(rights), groups) else chosen

    chosen = cross_validate(folds, rights, Penalties())[0]
    for block, ridges in RIDGES.items():
        known = all(block in fold.fitted and fold.fitted[block].shape[1] > 0 for fold in folds)
        aparts = {chosen.penalties.apart, APART_OF_BLOCKS} if known else ()
        chosen = better(
            chosen,
            *((replace(chosen.penalties, **{block: ridge}, apart=apart) for ridge in ridges) for apart in aparts),
        )
    others = (replace(chosen.penalties, apart=apart) for apart in APART if apart != chosen.penalties.apart)
    return better(chosen, *([penalties] for penalties in others))


def cross_validate(
    folds: Sequence[Fold],
    rights: Sequence[Array],
    penalties: Penalties,
    starts: Sequence[Sequence[Logistic]] | None = None,
) -> tuple[CrossValidated, Sequence[Sequence[Logistic]]]:
    """With the regressions of the folds, at which the next ones may start."""

    def fit(fold: Fold, start: Sequence[Logistic] | None) -> list[Logistic]:
        return penalties.fit(fold.fitted, [right[~fold.held_out] for right in rights], start)

    fitted = [fit(fold, start) for fold, start in zip(folds, starts or repeat(None, len(folds)), strict=True)]
    logits = np.zeros((2, len(rights[0])))
    for fold, sides in zip(folds, fitted, strict=True):
        logits[:, fold.held_out] = [side.logits(penalties.read(fold.asked)) for side in sides]
    return CrossValidated(penalties, logits), fitted


def is_less(errors: Array, others: Array, groups: Indices) -> bool:
    """Whether the mean of ``errors`` (n,) is less than that of ``others`` by more than the standard error of their
    difference over groups.
    """
    more = others - errors
    sums = np.bincount(groups, weights=more - more.mean())
    return bool(more.mean() > np.sqrt(np.sum(sums**2)) / len(more))
