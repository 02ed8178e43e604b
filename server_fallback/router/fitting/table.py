"""The table of a fit: everything that its regressions read from the pairs, each prompt read once.

Terms are counted in a sparse matrix, because a prompt has a few hundred of the hundreds of thousands that all prompts
have.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from nearfar.compiler.runtime.errors import RequestError

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
    known, columns, indices, ends = list[list[float | None]](), dict[str, int](), array("i"), [0]
    # The shared script reads a text without the interpreter's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for pair, (values, terms) in zip(pairs, pool.map(text_inputs, (pair.prompt for pair in pairs)), strict=True):
            of_pair = {**values, **(pair.near.signals or {})}
            known.append([of_pair.get(name) for name in features])
            indices.extend([columns.setdefault(term, len(columns)) for term in terms])
            ends.append(len(indices))
    counts = csr_array((np.ones(len(indices), np.int32), indices, ends), shape=(len(pairs), len(columns)))
    counts.sum_duplicates()
    numbers = dict[str | int, int]()
    groups = [
        numbers.setdefault(index if pair.group is None else pair.group, len(numbers))
        for index, pair in enumerate(pairs)
    ]
    return Table(
        features,
        np.array(known, np.float64),
        tuple(columns),
        counts,
        np.array(groups, np.int64),
        vectors_of(pairs) if embedding else None,
    )


def vectors_of(pairs: Sequence[Pair]) -> Array:
    """(n, E)."""
    if any(pair.embedding is None for pair in pairs):
        raise RequestError("a pair has no vector; embed the prompts with the model that the predictor names")
    return np.array([pair.embedding for pair in pairs], np.float64)
