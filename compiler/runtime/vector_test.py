"""Run a bundle's vector test on a runner: texts whose embeddings or scores are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..bundle.entries import VectorTestEntry, VectorTestRow
from .batch import FloatArray
from .encoding import Text, encode
from .runner import Runner


def largest_difference(runner: Runner, test: VectorTestEntry) -> float:
    """The largest length of the difference from the expected values of a row, relative to the longest row; infinite if
    not finite.
    """
    results = np.concatenate([np.atleast_2d(each) for each in encode(runner, [Text(text) for text in test.texts])])
    if not np.isfinite(results).all():
        return float("inf")
    return float(lengths_of_differences(test.rows, results).max())


def lengths_of_differences(rows: Sequence[VectorTestRow], results: FloatArray) -> npt.NDArray[np.float64]:
    """The length of each row's difference, relative to the longest of the rows' values."""
    expected = [np.array(row.values, np.float64) for row in rows]
    longest = max(float(np.linalg.norm(values)) for values in expected)
    differences = [
        np.linalg.norm(results[row.row, row.elements].astype(np.float64) - values)
        for row, values in zip(rows, expected, strict=True)
    ]
    return np.array(differences) / longest
