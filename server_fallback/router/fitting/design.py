"""The design of a fit: the values that its regressions read from each pair, and the folds that its cross-validation
holds out.

A fold holds out complete groups, so prompts from one template are never on both sides. Therefore neither the regression
of a fold nor its list of terms has seen the phrasings on which it is measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from ..decision.features import SIGNALS, TEXT_FEATURES, FeatureName, text_features, text_terms
from .components import PrincipalComponents, principal_components
from .logistic import Fold
from .pairs import Array, Pair

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

    features: tuple[FeatureName, ...]
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

    def rows(self, pairs: Sequence[Pair]) -> Array:
        """The inputs of the weights, (n, F + T + K), as `Predictor.inputs` computes them."""
        standard = np.nan_to_num((values(pairs, self.features) - self.mean) / self.scale, nan=0.0)
        columns = {term: column for column, term in enumerate(self.terms)}
        known = np.zeros((len(pairs), len(self.terms)))
        for row, pair in enumerate(pairs):
            terms = text_terms(pair.prompt)
            found = [columns[term] for term in terms if term in columns]
            known[row, found] = len(found) / max(1, len(terms))
        components = [] if self.components is None else [self.components.of(pairs)]
        return np.hstack([standard, known, *components])


def make_design(pairs: Sequence[Pair], *, signals: bool = False, embedding: bool = False) -> Design:
    """A signal that no pair has is not a feature; if some pairs have it, the others count as their mean. With
    ``embedding``, every pair must have a vector.
    """
    used = [name for name in SIGNALS if signals and any(signal(pair, name) is not None for pair in pairs)]
    features: tuple[FeatureName, ...] = (*TEXT_FEATURES, *used)
    table = values(pairs, features)
    mean, scale = np.nanmean(table, axis=0), np.nanstd(table, axis=0)
    # A value that is the same in all pairs shows nothing, so any scale will do.
    scale[scale < MIN_SCALE] = 1.0
    groups = defaultdict[str, set[str | int]](set)
    counts = defaultdict[str, int](int)
    for pair, group in zip(pairs, group_of_each(pairs), strict=True):
        for term in set(text_terms(pair.prompt)):
            counts[term] += 1
            groups[term].add(group)
    terms = sorted(term for term in counts if counts[term] >= MIN_TERM_PAIRS and len(groups[term]) >= MIN_TERM_GROUPS)
    return Design(features, mean, scale, tuple(terms), principal_components(pairs) if embedding else None)


def make_folds(pairs: Sequence[Pair], *, signals: bool = False, embedding: bool = False) -> list[Fold]:
    """Five folds of whole groups; a pair without a group is one by itself. With fewer groups than folds, groups do not
    count.
    """
    groups = group_of_each(pairs)
    order = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    numbers = np.array([order[group] for group in groups]) if len(order) >= FOLDS else np.arange(len(pairs))
    folds = []
    for fold in range(FOLDS):
        held_out = numbers % FOLDS == fold
        inside = [pair for pair, out in zip(pairs, held_out, strict=True) if not out]
        folds.append(Fold(make_design(inside, signals=signals, embedding=embedding).rows(pairs), held_out))
    return folds


def group_of_each(pairs: Sequence[Pair]) -> list[str | int]:
    return [index if pair.group is None else pair.group for index, pair in enumerate(pairs)]


def values(pairs: Sequence[Pair], features: Sequence[FeatureName]) -> Array:
    """(n, F); an unknown signal is NaN."""
    rows = []
    for pair in pairs:
        known: dict[str, float | None] = {**text_features(pair.prompt)}
        known |= {} if pair.near.signals is None else asdict(pair.near.signals)
        rows.append([known.get(name) for name in features])
    return np.array(rows, np.float64)


def signal(pair: Pair, name: str) -> float | None:
    return None if pair.near.signals is None else asdict(pair.near.signals)[name]
