"""The table of a fit: everything that its regressions read from the pairs, each prompt read once.

Terms are counted in a sparse matrix, because a prompt has a few hundred of the hundreds of thousands that all prompts
have.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from nearfar.compiler.errors import RequestError

from ..decision.predictor import feature_names, text_inputs
from .pairs import Array, Pair

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Table:
    """``values`` (n, F) of ``features``; NaN for an unknown signal. ``counts`` (n, V): how often each of ``terms`` (V,)
    is in each prompt. ``groups`` (n,) are numbers; a pair without a group has its own. ``vectors`` (n, E), or None.
    """

    features: tuple[str, ...]
    values: Array
    terms: tuple[str, ...]
    counts: Any
    groups: Indices
    vectors: Array | None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Indices) -> Table:
        """The rows of these numbers, in their order; a row may be taken several times."""
        vectors = None if self.vectors is None else self.vectors[rows]
        return replace(
            self, values=self.values[rows], counts=self.counts[rows], groups=self.groups[rows], vectors=vectors
        )


def read_table(pairs: Sequence[Pair], *, signals: bool = False, embedding: bool = False) -> Table:
    """With ``signals``, near's signals are features too. With ``embedding``, every pair must have a vector; raises
    RequestError otherwise.
    """
    names = feature_names()
    features = (*names["text"], *(names["signals"] if signals else ()))
    texts = [text_inputs(pair.prompt) for pair in pairs]
    known = [{**values, **(pair.near.signals or {})} for (values, _), pair in zip(texts, pairs, strict=True)]
    terms, counts = count_terms([terms for _, terms in texts])
    numbers = dict[str | int, int]()
    groups = [
        numbers.setdefault(index if pair.group is None else pair.group, len(numbers))
        for index, pair in enumerate(pairs)
    ]
    return Table(
        features,
        values_of(known, features),
        terms,
        counts,
        np.array(groups, np.int64),
        vectors_of(pairs) if embedding else None,
    )


def count_terms(texts: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], Any]:
    """All terms (V,) of texts (n,), and how often each text has each (n, V)."""
    columns, indices, ends = dict[str, int](), array("i"), [0]
    for terms in texts:
        indices.extend([columns.setdefault(term, len(columns)) for term in terms])
        ends.append(len(indices))
    counts = csr_array((np.ones(len(indices), np.int32), indices, ends), shape=(len(texts), len(columns)))
    counts.sum_duplicates()
    return tuple(columns), counts


def values_of(known: Sequence[Mapping[str, float | None]], features: Sequence[str]) -> Array:
    """(n, F) from what is known of each pair; an unknown signal is NaN."""
    return np.array([[values.get(name) for name in features] for values in known], np.float64)


def vectors_of(pairs: Sequence[Pair]) -> Array:
    """(n, E)."""
    if any(pair.embedding is None for pair in pairs):
        raise RequestError("a pair has no vector; embed the prompts with the model that the predictor names")
    return np.array([pair.embedding for pair in pairs], np.float64)
