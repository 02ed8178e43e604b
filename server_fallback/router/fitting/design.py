"""The design of a fit: the values that its regressions read from each pair, and the folds that its cross-validation
holds out.

A fold holds out complete groups, so prompts from one template are never on both sides. Therefore neither the regression
of a fold nor its list of terms has seen the phrasings on which it is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array, hstack

from ..decision.predictor import MAX_TERMS
from .logistic import Fold
from .pairs import Array
from .table import Table

FOLDS = 5
# A term of fewer pairs or of one group shows more about these than about new prompts.
MIN_TERM_PAIRS = 3
MIN_TERM_GROUPS = 2
MIN_SCALE = 1e-9


@dataclass(frozen=True, slots=True)
class Design:
    """``mean`` and ``scale`` (F,) of ``features`` (F,), the ``terms`` (T,) that count, and the K principal components
    of the prompts' vectors, or None.
    """

    features: tuple[str, ...]
    mean: Array
    scale: Array
    terms: tuple[str, ...]
    components: PrincipalComponents | None = None

    @property
    def names(self) -> list[str]:
        """Of the inputs of the weights."""
        count = 0 if self.components is None else len(self.components.rows)
        components = [f"component {number}" for number in range(1, count + 1)]
        return [*self.features, *(f'"{term}"' for term in self.terms), *components]

    def rows(self, table: Table) -> Any:
        """The inputs of the weights, sparse (n, F + T + K), as the predictor computes them."""
        columns = [table.features.index(name) for name in self.features]
        standard = np.nan_to_num((table.values[:, columns] - self.mean) / self.scale, nan=0.0)
        blocks = [csr_array(standard), self._known(table)]
        if self.components is not None:
            assert table.vectors is not None
            blocks.append(csr_array(self.components.of(table.vectors)))
        rows = hstack(blocks, format="csr")
        # scikit-learn reads no wider indices, and narrow ones need less memory.
        rows.indices, rows.indptr = rows.indices.astype(np.int32), rows.indptr.astype(np.int32)
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
    components = None if table.vectors is None else principal_components(table.vectors)
    return Design(features, mean, scale, choose_terms(table), components)


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


def make_folds(table: Table) -> list[Fold]:
    """Five folds of whole groups. With fewer groups than folds, groups do not count."""
    groups = table.groups
    numbers = groups if groups.max() + 1 >= FOLDS else np.arange(len(table))
    folds = []
    for fold in range(FOLDS):
        held_out = numbers % FOLDS == fold
        design = make_design(table.take(np.flatnonzero(~held_out)))
        folds.append(Fold(design.rows(table), held_out))
    return folds


# Those that were measured; see router/README.md.
NUM_COMPONENTS = 4
MIN_VARIANCE = 1e-12


@dataclass(frozen=True, slots=True)
class PrincipalComponents:
    """Of prompts' vectors, each with the variance 1 (Hotelling 1933). ``mean`` (E,) and ``rows`` (K, E)."""

    mean: Array
    rows: Array

    def of(self, vectors: Array) -> Array:
        """(n, E) -> (n, K)."""
        return (vectors - self.mean) @ self.rows.T


def principal_components(vectors: Array, count: int = NUM_COMPONENTS) -> PrincipalComponents:
    """Of vectors (n, E), at most ``count``: directions in which they do not differ are left out."""
    mean = vectors.mean(0)
    _, lengths, directions = np.linalg.svd(vectors - mean, full_matrices=False)
    deviations = lengths / np.sqrt(len(vectors))
    kept = min(count, int(np.sum(deviations**2 > MIN_VARIANCE)))
    # The sign of a component is arbitrary: its largest number is positive, on every machine.
    directions = directions[:kept]
    largest = directions[np.arange(kept), np.abs(directions).argmax(1)]
    return PrincipalComponents(mean, directions * np.sign(largest)[:, None] / deviations[:kept, None])
