"""The waiting queue: the sequences that are not running, by rank."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Iterator

from .sequence import FINISHED, WAITING, Sequence, by_rank


class WaitingQueue:
    """A follower, whose prompt an earlier sequence is computing, is held back until that is done."""

    def __init__(self) -> None:
        self._queue: list[Sequence] = []
        self._followers: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._queue) + len(self._followers)

    def __iter__(self) -> Iterator[Sequence]:
        """Those that can be admitted, by rank."""
        return iter(self._queue)

    @property
    def head(self) -> Sequence | None:
        """The next one to admit."""
        return self._queue[0] if self._queue else None

    def add(self, sequence: Sequence) -> None:
        sequence.state = WAITING
        if computes_prompt(sequence.leader):
            self._followers.append(sequence)
        else:
            insort(self._queue, sequence, key=by_rank)

    def remove(self, sequence: Sequence) -> None:
        (self._followers if sequence in self._followers else self._queue).remove(sequence)

    def release_followers(self) -> None:
        """Queue the followers whose leader has computed the prompt, or has ended."""
        for follower in [follower for follower in self._followers if not computes_prompt(follower.leader)]:
            self._followers.remove(follower)
            insort(self._queue, follower, key=by_rank)

    def sort(self) -> None:
        """Restore the order after priorities have changed."""
        self._queue.sort(key=by_rank)


def computes_prompt(leader: Sequence | None) -> bool:
    """Whether a leader's prompt is still to be computed."""
    return leader is not None and leader.state != FINISHED and leader.generated == 0 and leader.computed < len(leader.prompt)


def promote_overdue(sequences: Iterable[Sequence], step_number: int, patience_steps: int | None) -> bool:
    """Give the highest priority to sequences that had no row for ``patience_steps`` steps. Whether there were any."""
    # Looking now and then is enough for a bound.
    if patience_steps is None or step_number % max(1, patience_steps // 8) > 0:
        return False
    overdue = [sequence for sequence in sequences if sequence.priority < math.inf and sequence.steps_waited(step_number) >= patience_steps]
    for sequence in overdue:
        sequence.priority = math.inf
    return bool(overdue)
