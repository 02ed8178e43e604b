"""The deadlines of unfinished answers, earliest first."""

from __future__ import annotations

import heapq
from itertools import count

from .answer import Answer


class Deadlines:
    def __init__(self) -> None:
        # Equal deadlines expire in the order in which they were added.
        self._heap: list[tuple[float, int, Answer]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline: float, answer: Answer, num_unfinished: int) -> None:
        """``deadline`` is a time of `time.monotonic`; ``num_unfinished`` answers exist."""
        heapq.heappush(self._heap, (deadline, next(self._numbers), answer))
        # Answers that end in time must not be held until their deadline.
        if len(self._heap) > 2 * num_unfinished + 64:
            self._heap = [entry for entry in self._heap if not entry[2].ended]
            heapq.heapify(self._heap)

    def expired(self, now: float) -> Answer | None:
        """Remove and return an unfinished answer whose deadline has passed, None if there is none."""
        while self._heap and (self._heap[0][2].ended or self._heap[0][0] <= now):
            answer = heapq.heappop(self._heap)[2]
            if not answer.ended:
                return answer
        return None
