"""The principal components of prompts' vectors (Hotelling 1933), each with the variance 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nearfar.compiler.errors import RequestError

from .pairs import Array, Pair

# Those that were measured; see router/README.md.
COUNT = 4
MIN_VARIANCE = 1e-12


@dataclass(frozen=True, slots=True)
class PrincipalComponents:
    """``mean`` (E,) and ``rows`` (K, E)."""

    mean: Array
    rows: Array

    def of(self, pairs: Sequence[Pair]) -> Array:
        """(n, K)."""
        return (vectors(pairs) - self.mean) @ self.rows.T


def principal_components(pairs: Sequence[Pair], count: int = COUNT) -> PrincipalComponents:
    """At most ``count``: directions in which the vectors do not differ are left out."""
    table = vectors(pairs)
    mean = table.mean(0)
    _, lengths, directions = np.linalg.svd(table - mean, full_matrices=False)
    deviations = lengths / np.sqrt(len(pairs))
    kept = min(count, int(np.sum(deviations**2 > MIN_VARIANCE)))
    # The sign of a component is arbitrary: its largest number is positive, on every machine.
    directions = directions[:kept]
    largest = directions[np.arange(kept), np.abs(directions).argmax(1)]
    return PrincipalComponents(mean, directions * np.sign(largest)[:, None] / deviations[:kept, None])


def vectors(pairs: Sequence[Pair]) -> Array:
    """(n, E). Raises RequestError for a pair without a vector."""
    if any(pair.embedding is None for pair in pairs):
        raise RequestError("a pair has no vector; embed the prompts with the model that the predictor names")
    return np.array([pair.embedding for pair in pairs], np.float64)
