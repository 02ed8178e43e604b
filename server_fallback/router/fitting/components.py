"""The principal components of prompts' vectors (Hotelling 1933), each with the variance 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .pairs import Array

# Those that were measured; see router/README.md.
COUNT = 4
MIN_VARIANCE = 1e-12


@dataclass(frozen=True, slots=True)
class PrincipalComponents:
    """``mean`` (E,) and ``rows`` (K, E)."""

    mean: Array
    rows: Array

    def of(self, vectors: Array) -> Array:
        """(n, E) -> (n, K)."""
        return (vectors - self.mean) @ self.rows.T


def principal_components(vectors: Array, count: int = COUNT) -> PrincipalComponents:
    """Of vectors (n, E), at most ``count``: directions in which they do not differ are left out."""
    mean = vectors.mean(0)
    _, lengths, directions = np.linalg.svd(vectors - mean, full_matrices=False)
    deviations = lengths / np.sqrt(len(vectors))
    kept = min(count, int(np.sum(deviations**2 > MIN_VARIANCE)))
    # The sign of a component is arbitrary: its largest number is positive, on every machine.
    directions = directions[:kept]
    largest = directions[np.arange(kept), np.abs(directions).argmax(1)]
    return PrincipalComponents(mean, directions * np.sign(largest)[:, None] / deviations[:kept, None])
