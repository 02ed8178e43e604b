"""Events: a clock that calls functions at simulated times, in the order of the times and then of their requests."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Clock:
    """``now`` is in seconds, from 0 on."""

    def __init__(self) -> None:
        self.now = 0.0
        self._is_stopped = False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Call ``action`` at a time that is not in the past."""
        assert time >= self.now, (time, self.now)
        heappush(self._events, (time, next(self._numbers), action))

    def run(self) -> None:
        """Until nothing is left to call, or `stop` is called."""
        while self._events and not self._is_stopped:
            self.now, _, action = heappop(self._events)
            action()

    def stop(self) -> None:
        """Call nothing any more, whatever is planned."""
        self._is_stopped = True
