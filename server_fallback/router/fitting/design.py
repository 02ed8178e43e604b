"""The design of a fit: the blocks of values that its regressions read from each pair, and the folds that its
cross-validation holds out.

A fold holds out complete groups, so prompts from one template are never on both sides. Therefore neither the regression
of a fold nor its list of terms has seen the phrasings on which it is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from ..decision.predictor import MAX_TERMS
from .pairs import Array
from .table import Table

FOLDS = 5
# A term of fewer pairs or of one group shows more about these than about new prompts.
MIN_TERM_PAIRS = 3
MIN_TERM_GROUPS = 2
MIN_SCALE = 1e-9

Block = Literal["features", "terms", "vectors"]
# (n, d) of each block, dense or sparse.
Rows = Mapping[Block, Any]


@dataclass(frozen=True, slots=True)
class Design:
    """``mean`` and ``scale`` (F,) of ``features`` (F,), the ``terms`` (T,) that count, and the ``centre`` of the
    prompts' vectors, or None.
    """

    features: tuple[str, ...]
    mean: Array
    scale: Array
    terms: tuple[str, ...]
    centre: Centre | None = None

    def rows(self, table: Table) -> Rows:
        """The inputs of the weights, as the predictor computes them: features (n, F), terms (n, T), and vectors (n, E)
        if the design has a centre.
        """
        columns = [table.features.index(name) for name in self.features]
        standard = np.nan_to_num((table.values[:, columns] - self.mean) / self.scale, nan=0.0)
        rows: dict[Block, Any] = {"features": standard, "terms": self._known(table)}
        if self.centre is not None:
            assert table.vectors is not None
            rows["vectors"] = self.centre.of(table.vectors)
        return rows

    def _known(self, table: Table) -> Any:
        """(n, T): for each term that a prompt has, the share of its terms that are among ``terms``."""
        column_of = {term: column for column, term in enumerate(self.terms)}
        column = np.array([column_of.get(term, -1) for term in table.terms], np.int64)
        entries = table.counts.tocoo()
        found = column[entries.col] >= 0
        rows, numbers = entries.row[found], entries.data[found]
        known = np.bincount(rows, weights=numbers, minlength=len(table))
        share = known / np.maximum(1, table.counts.sum(axis=1))
        return csr_array((share[rows], (rows, column[entries.col[found]])), shape=(len(table), len(self.terms)))


def make_design(table: Table) -> Design:
    """A signal that no pair has is not a feature; if some pairs have it, the others count as their mean."""
    used = np.flatnonzero(~np.isnan(table.values).all(axis=0))
    values = table.values[:, used]
    mean, scale = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
    # A value that is the same in all pairs shows nothing, so any scale will do.
    scale[scale < MIN_SCALE] = 1.0
    features = tuple(table.features[column] for column in used)
    centre = None if table.vectors is None else centre_of(table.vectors)
    return Design(features, mean, scale, choose_terms(table), centre)


def choose_terms(table: Table) -> tuple[str, ...]:
    """The terms of enough pairs and groups, sorted; the commonest if a policy cannot have all of them."""
    pairs, count = table.counts.astype(bool).astype(np.int32), len(table)
    members = csr_array(
        (np.ones(count, np.int32), (table.groups, np.arange(count))), shape=(max(table.groups) + 1, count)
    )
    groups = members @ pairs
    num_pairs, num_groups = (np.bincount(counts.indices, minlength=len(table.terms)) for counts in (pairs, groups))
    enough = np.flatnonzero((num_pairs >= MIN_TERM_PAIRS) & (num_groups >= MIN_TERM_GROUPS))
    commonest = sorted(enough, key=lambda index: (-num_pairs[index], table.terms[index]))[:MAX_TERMS]
    return tuple(sorted(table.terms[index] for index in commonest))


@dataclass(frozen=True, slots=True)
class Centre:
    """Of prompts' vectors: their ``mean`` (E,), and the ``scale`` by which the mean square of their distances from it
    is 1, for encoders whose vectors all point the same way.
    """

    mean: Array
    scale: float

    def of(self, vectors: Array) -> Array:
        """(n, E) -> (n, E)."""
        return (vectors - self.mean) / self.scale


def centre_of(vectors: Array) -> Centre:
    mean = vectors.mean(0)
    scale = float(np.sqrt(np.mean(np.sum((vectors - mean) ** 2, axis=1))))
    return Centre(mean, max(scale, MIN_SCALE))


@dataclass(frozen=True, slots=True)
class Fold:
    """``fitted`` and ``asked`` are the rows of the pairs that a fold's fit reads, and of those that it holds out:
    ``held_out`` (n,). The number of terms differs between folds.
    """

    fitted: Rows
    asked: Rows
    held_out: npt.NDArray[np.bool_]


def make_folds(table: Table) -> Sequence[Fold]:
    """Five folds of whole groups. With fewer groups than folds, groups do not count."""
    groups = table.groups
    numbers = groups if groups.max() + 1 >= FOLDS else np.arange(len(table))
    folds = []
    for fold in range(FOLDS):
        held_out = numbers % FOLDS == fold
        inside, outside = table.take(np.flatnonzero(~held_out)), table.take(np.flatnonzero(held_out))
        design = make_design(inside)
        folds.append(Fold(design.rows(inside), design.rows(outside), held_out))
    return folds
