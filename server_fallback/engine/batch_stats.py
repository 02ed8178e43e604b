"""What the batches of an encoder engine were like: histograms of their sizes and times, for metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Histogram:
    """``counts`` are those of values up to each of ``bounds`` and above the one before it; the last is of those above
    all. ``total`` is the sum of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class BatchStats:
    """The ``texts`` and ``tokens`` of each batch, the seconds that each text waited, and that each batch took."""

    texts: Histogram
    tokens: Histogram
    queue_seconds: Histogram
    compute_seconds: Histogram


class _Counts:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds, self._counts, self._total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def snapshot(self) -> Histogram:
        return Histogram(self._bounds, tuple(self._counts), self._total)


class BatchRecord:
    """Filled by the engine's thread; `snapshot` is callable from any. ``recoveries``: failures of the device that the
    engine survived.
    """

    def __init__(self) -> None:
        self._texts, self._tokens = _Counts(SIZES), _Counts(TOKENS)
        self._queue, self._compute = _Counts(SECONDS), _Counts(SECONDS)
        self.recoveries = 0

    def admitted(self, seconds: Iterable[float]) -> None:
        for each in seconds:
            self._queue.add(each)

    def computed(self, texts: int, tokens: int, seconds: float) -> None:
        self._texts.add(texts)
        self._tokens.add(tokens)
        self._compute.add(seconds)

    def snapshot(self) -> BatchStats:
        return BatchStats(
            self._texts.snapshot(), self._tokens.snapshot(), self._queue.snapshot(), self._compute.snapshot()
        )
