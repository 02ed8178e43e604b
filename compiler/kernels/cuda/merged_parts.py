"""The results of attention over parts of the keys, as if they were one part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce

from ..builder import KernelBuilder, Scalar, cast, maximum, number, select
from ..scores import LOWEST
from ..vectors import lane_of, splat
from .functions import fast_exp2


class MergedParts:
    """A vector of one head: its weighted values, their sum of weights, and the largest score, in registers. Scores are
    multiplied by ``exponent_scale`` before they become powers of two.
    """

    def __init__(self, kernel: KernelBuilder, lanes: int, exponent_scale: Scalar) -> None:
        self._kernel, self._lanes, self._exponent_scale = kernel, lanes, exponent_scale
        self.result = kernel.local("merged", 1, f"float32x{lanes}")
        self.largest, self.total = (kernel.local(name, 1, "float32") for name in ("merged_largest", "merged_total"))

    def clear(self) -> None:
        self.largest[0], self.total[0], self.result[0] = LOWEST, 0, 0

    def add(self, softmaxes: Sequence[Scalar], values: Sequence[Scalar], exist: Sequence[Scalar | bool] = ()) -> None:
        """Add parts: the largest score and the sum of weights in two lanes, and the weighted values. Parts that do not
        ``exist`` are ignored.
        """
        kernel, lowest = self._kernel, number(LOWEST, "float32")
        scores = [lane_of(each, 0) for each in softmaxes]
        if exist:
            scores = [select(real, score, lowest) for real, score in zip(exist, scores, strict=True)]
        scores = [kernel.let("score", each) for each in scores]
        largest = kernel.let("largest", reduce(maximum, scores, self.largest[0]))
        before = kernel.let("before", self._factor(self.largest[0], largest))
        self.largest[0] = largest
        self.total[0] = self.total[0] * before
        self.result[0] = self.result[0] * splat(before, self._lanes)
        for i, (score, softmax, value) in enumerate(zip(scores, softmaxes, values, strict=True)):
            factor = self._factor(score, largest)
            if exist:
                factor = select(exist[i], factor, number(0, "float32"))
            factor = kernel.let("factor", factor)
            self.total[0] = self.total[0] + lane_of(softmax, 1) * factor
            self.result[0] = self.result[0] + value * splat(factor, self._lanes)

    def mean(self, dtype: str) -> Scalar:
        """The weighted mean of the values."""
        return cast(self.result[0] / splat(self.total[0], self._lanes), dtype)

    def _factor(self, score: Scalar, largest: Scalar) -> Scalar:
        return fast_exp2((score - largest) * self._exponent_scale)


@contextmanager
def vectors_of_heads(
    kernel: KernelBuilder, thread: Scalar, threads: int, heads: int, vectors: int
) -> Iterator[tuple[Scalar, Scalar]]:
    """A loop over the thread's vectors of some heads, as the head and the index of the vector."""
    size = heads * vectors
    with kernel.loop("turn", -(-size // threads)) as turn:
        item = kernel.let("item", turn * threads + thread)
        with kernel.when(True if size % threads == 0 else item < size):
            yield kernel.let("own_head", item // vectors), kernel.let("index", item % vectors)
