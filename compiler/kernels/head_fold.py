"""Combine the threads' values for the heads of a workgroup of decode attention."""

from __future__ import annotations

from collections.abc import Callable

from .builder import Array, Scalar
from .decode_range import FOLD_LANES, DecodeRange


class HeadFold:
    """Combines the threads' values for the workgroup's heads into one vector for each four heads."""

    def __init__(self, work: DecodeRange) -> None:
        kernel, options = work.kernel, work.options
        self._kernel, self._thread, self._threads, self._vectors = (
            kernel,
            work.thread,
            options.threads,
            options.score_vectors,
        )
        self._few = kernel.shared("few", (FOLD_LANES * options.score_vectors,), "float32x4")
        self._folding = kernel.local("folding", 1, "float32x4")

    def fold(self, source: Array, combine: Callable[[Scalar, Scalar], Scalar]) -> None:
        """Reduce the vectors of each thread in ``source``, one for each four heads, to a few for `folded`."""
        kernel, step = self._kernel, FOLD_LANES * self._vectors
        kernel.barrier()
        with kernel.when(self._thread < step):
            self._folding[0] = source[self._thread]
            with kernel.loop("i", self._threads // FOLD_LANES - 1) as i:
                self._folding[0] = combine(self._folding[0], source[(i + 1) * step + self._thread])
            self._few[self._thread] = self._folding[0]
        kernel.barrier()

    def folded(self, combine: Callable[[Scalar, Scalar], Scalar]) -> Scalar:
        """The combined vector of all threads. Only for the first ``score_vectors`` threads."""
        self._folding[0] = self._few[self._thread]
        with self._kernel.loop("i", FOLD_LANES - 1) as i:
            self._folding[0] = combine(self._folding[0], self._few[(i + 1) * self._vectors + self._thread])
        return self._folding[0]

    def sum(self, count: int, step: int, source: Array, first: Scalar) -> Scalar:
        """The sum of ``count`` vectors of ``source``, ``step`` apart."""
        self._folding[0] = 0
        with self._kernel.loop("group", count) as group:
            self._folding[0] = self._folding[0] + source[group * step + first]
        return self._folding[0]
