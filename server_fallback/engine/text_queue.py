"""The texts that wait to be encoded, shared fairly between clients, and when the next batch of them is due."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable

from .batching import Batching
from .encode_job import EncodeJob, Text


class TextQueue:
    """Among equal priorities, the next text belongs to the client with the fewest tokens, counted from when it began to
    wait (start-time fair queueing, Goyal, Vin and Cheng 1996). A client's first text waits for at most one text of each
    other client, however many texts these have.
    """

    def __init__(self) -> None:
        # By client: its texts by priority and arrival.
        self._heaps: dict[str, list[tuple[int, int, Text]]] = {}
        self._numbers = itertools.count()
        # Virtual time, in tokens: of the last text, of each waiting client's next one, and of each client's end.
        self._now = 0
        self._starts: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self._jobs: dict[EncodeJob, int] = {}
        self.tokens = 0

    def __len__(self) -> int:
        return sum(map(len, self._heaps.values()))

    @property
    def jobs(self) -> list[EncodeJob]:
        """Those with a text that waits, in order of arrival."""
        return list(self._jobs)

    def add(self, job: EncodeJob) -> None:
        client = job.request.client
        if client not in self._heaps:
            self._heaps[client] = []
            self._starts[client] = max(self._now, self._ends.get(client, 0))
        for index, ids in enumerate(job.request.texts):
            heapq.heappush(self._heaps[client], (-job.request.priority, next(self._numbers), Text(job, index)))
            self.tokens += len(ids)
        self._jobs[job] = len(job.request.texts)

    def take(self, fits: Callable[[Text], bool]) -> list[Text]:
        """Remove and return the next texts for which ``fits`` is true, asked in this order. A client whose next text
        does not fit has the earlier turn in the next batch.
        """
        taken, full = [], set[str]()
        while clients := self._heaps.keys() - full:
            client = min(clients, key=self._turn)
            text = self._heaps[client][0][2]
            if not fits(text):
                full.add(client)
                continue
            self._pop(client)
            taken.append(text)
        return taken

    def drop(self, gone: Iterable[EncodeJob]) -> None:
        """Remove all texts of some jobs."""
        dropped = {job for job in gone if self._jobs.pop(job, 0)}
        for client in {job.request.client for job in dropped}:
            heap = [entry for entry in self._heaps[client] if entry[2].job not in dropped]
            self.tokens -= sum(len(text.ids) for _, _, text in self._heaps[client] if text.job in dropped)
            heapq.heapify(heap)
            self._heaps[client] = heap
            self._forget_if_empty(client)

    def due(self, now: float, batching: Batching, *, max_tokens: int, max_texts: int) -> float | None:
        """The time when the next batch should begin, ``now`` or a later one; None if no text waits.

        A text whose deadline is near is delayed for at most half of its time.
        """
        count = len(self)
        if count == 0:
            return None
        is_full = count >= max_texts or self.tokens >= max_tokens
        if is_full or any(count >= size for size in batching.preferred_sizes):
            return now
        due = min(_latest_start(job, batching.max_delay_seconds) for job in self._jobs)
        return max(now, due)

    def _turn(self, client: str) -> tuple[int, int, int]:
        priority, number, _ = self._heaps[client][0]
        return priority, self._starts[client], number

    def _pop(self, client: str) -> None:
        text = heapq.heappop(self._heaps[client])[2]
        self._jobs[text.job] -= 1
        if self._jobs[text.job] == 0:
            del self._jobs[text.job]
        start, cost = self._starts[client], len(text.ids)
        self.tokens -= cost
        self._now = max(self._now, start)
        self._ends = {other: end for other, end in self._ends.items() if end > self._now}
        self._starts[client] = self._ends[client] = start + cost
        self._forget_if_empty(client)

    def _forget_if_empty(self, client: str) -> None:
        if not self._heaps[client]:
            del self._heaps[client], self._starts[client]


def _latest_start(job: EncodeJob, max_delay_seconds: float) -> float:
    deadline = job.request.deadline
    delay = max_delay_seconds if deadline is None else min(max_delay_seconds, (deadline - job.arrived) / 2)
    return job.arrived + delay
