"""The waiting queue: the sequences that are not running, shared fairly between clients."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Iterator
from itertools import chain

from .sequence import FINISHED, WAITING, Sequence, by_rank


class WaitingQueue:
    """Each client has a queue in order of rank. Among equal priorities, the next sequence belongs to the client with
    the fewest admissions, counted from when it began to wait (start-time fair queueing, Goyal, Vin and Cheng 1996). A
    client's first request waits for at most one admission of each other client with the same priority, however long
    their queues are. Sequences that resume an answer come first and are not counted.

    An admission needs a free slot and pages, and nobody is preempted for fairness. So the wait in seconds is bounded by
    how soon a running answer ends: by ``max_tokens``, the context, or a deadline. Overdue sequences (`promote_overdue`)
    have the highest priority: behind those of another client, a first request waits until it is overdue too.

    A follower, whose prompt an earlier sequence is computing, is held back until that is done.
    """

    def __init__(self) -> None:
        self._queues: dict[str, list[Sequence]] = {}
        self._followers: list[Sequence] = []
        # Virtual time, in admissions: of the last admission, of each waiting client's next one, and of the end of each
        # client's last one.
        self._now = 0
        self._starts: dict[str, int] = {}
        self._ends: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values())) + len(self._followers)

    def __iter__(self) -> Iterator[Sequence]:
        """Those that can be admitted: by client, then by rank."""
        return chain.from_iterable(self._queues.values())

    @property
    def head(self) -> Sequence | None:
        """The next one to admit. Takes time linear in the number of waiting clients."""
        return min((queue[0] for queue in self._queues.values()), key=self._by_turn, default=None)

    def add(self, sequence: Sequence) -> None:
        sequence.state = WAITING
        if computes_prompt(sequence.leader):
            self._followers.append(sequence)
        else:
            self._enqueue(sequence)

    def remove(self, sequence: Sequence) -> None:
        if sequence in self._followers:
            self._followers.remove(sequence)
            return
        queue = self._queues[sequence.client]
        queue.remove(sequence)
        if not queue:
            del self._queues[sequence.client], self._starts[sequence.client]

    def admit(self, sequence: Sequence) -> None:
        """Remove a sequence that starts to run, and count it."""
        client, start = sequence.client, self._starts[sequence.client]
        self.remove(sequence)
        if sequence.resumes:
            return
        self._now = max(self._now, start)
        # Ends before now no longer count.
        self._ends = {other: end for other, end in self._ends.items() if end > self._now}
        self._ends[client] = start + 1
        if client in self._starts:
            self._starts[client] = start + 1

    def release_followers(self) -> None:
        """Queue the followers whose leader has computed the prompt, or has ended."""
        for follower in [follower for follower in self._followers if not computes_prompt(follower.leader)]:
            self._followers.remove(follower)
            self._enqueue(follower)

    def sort(self) -> None:
        """Restore the order after priorities have changed."""
        for queue in self._queues.values():
            queue.sort(key=by_rank)

    def _enqueue(self, sequence: Sequence) -> None:
        client = sequence.client
        if client not in self._queues:
            self._queues[client] = []
            self._starts[client] = max(self._now, self._ends.get(client, 0))
        insort(self._queues[client], sequence, key=by_rank)

    def _by_turn(self, sequence: Sequence) -> tuple[float, int, int]:
        return -sequence.priority, -1 if sequence.resumes else self._starts[sequence.client], sequence.id


def computes_prompt(leader: Sequence | None) -> bool:
    """Whether a leader's prompt is still to be computed."""
    return (
        leader is not None
        and leader.state != FINISHED
        and leader.generated == 0
        and leader.computed < len(leader.prompt)
    )


def promote_overdue(sequences: Iterable[Sequence], step_number: int, patience_steps: int | None) -> bool:
    """Give the highest priority to sequences that had no row for ``patience_steps`` steps. Whether there were any."""
    # Looking now and then is enough for a bound.
    if patience_steps is None or step_number % max(1, patience_steps // 8) > 0:
        return False
    overdue = [
        sequence
        for sequence in sequences
        if sequence.priority < math.inf and sequence.steps_waited(step_number) >= patience_steps
    ]
    for sequence in overdue:
        sequence.priority = math.inf
    return bool(overdue)
