"""Latencies: a histogram whose observations are added together, because adding one takes as long as encoding an event
of a stream.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter

from prometheus_client import Histogram

FLUSH_SECONDS = 0.5


class ManyHistogram(Histogram):
    """A histogram that can add several observations at once."""

    def observe_all(self, amounts: list[float]) -> None:
        """The same as `observe` for each of the amounts."""
        self._sum.inc(sum(amounts))
        for bucket, count in Counter(bisect_left(self._upper_bounds, amount) for amount in amounts).items():
            self._buckets[bucket].inc(count)


class Latencies:
    """Belongs to one event loop, on which it adds its observations to the histogram after at most `FLUSH_SECONDS`."""

    def __init__(self, histogram: ManyHistogram) -> None:
        self._histogram = histogram
        self._pending: list[float] = []

    def add(self, seconds: float) -> None:
        if not self._pending:
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)
        self._pending.append(seconds)

    def flush(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, []
            self._histogram.observe_all(pending)
