"""The masks of constrained answers, computed by their servers: the process of the engine knows no grammar."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from threading import Condition

from ..engine.answer import Answer
from ..engine.mask_pool import QUICK_SECONDS, STUCK_SECONDS
from ..engine.mask_task import MaskTask
from ..engine.masks import SavedWaits
from .messages import Mask, MaskTurns


class RemoteConstraint:
    """Represents the constraint of an answer, which is on a server. ``send`` sends the server a message, on the event
    loop.
    """

    def __init__(self, answer: int, send: Callable[[MaskTurns], None]) -> None:
        self.answer, self.send = answer, send

    finished = complete = False

    def mask(self) -> None:
        raise AssertionError("the server computes this mask")

    def accept(self, token_id: int) -> None:
        raise AssertionError(f"the server accepts token {token_id}")


class RemoteMasks:
    """Implements `Masks`. `returned` is called on the event loop."""

    def __init__(self, max_wait_seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        self.pending: set[MaskTask[Answer]] = set()
        self._waits = SavedWaits(max_wait_seconds)
        self._loop = loop
        # The lock guards everything below.
        self._returned = Condition()
        self._posted: dict[RemoteConstraint, tuple[MaskTask[Answer], float]] = {}
        self._done: list[MaskTask[Answer]] = []

    def post(self, tasks: Iterable[MaskTask[Answer]]) -> None:
        turns: dict[Callable[[MaskTurns], None], list[tuple[int, int | None, bool]]] = {}
        with self._returned:
            for task in tasks:
                self.pending.add(task)
                constraint = constraint_of(task)
                self._posted[constraint] = task, time.perf_counter()
                turns.setdefault(constraint.send, []).append((constraint.answer, task.token_id, task.is_last))
        for send, each in turns.items():
            self._loop.call_soon_threadsafe(send, MaskTurns(each))

    def collect(self, wait_seconds: float | None = None) -> tuple[list[MaskTask[Answer]], list[MaskTask[Answer]]]:
        """Nothing is over its budget here: the server watches it, and returns it as an error."""
        with self._returned:
            if wait_seconds is None:
                now = time.perf_counter()
                until = self._waits.begin(now)
                while now < until and self._has_quick(now):
                    self._returned.wait(min(STUCK_SECONDS, until - now))
                    now = time.perf_counter()
                self._waits.end(now)
            else:
                self._returned.wait_for(lambda: self._done, wait_seconds)
            done, self._done = self._done, []
        self.pending.difference_update(done)
        return done, []

    def cancel(self, task: MaskTask[Answer]) -> None:
        self.pending.discard(task)
        with self._returned:
            self._posted.pop(constraint_of(task), None)
            if task in self._done:
                self._done.remove(task)

    @property
    def num_first(self) -> int:
        return sum(task.is_first for task in self.pending.copy())

    def close(self) -> None:
        self.pending.clear()

    def returned(self, constraint: RemoteConstraint, message: Mask) -> None:
        with self._returned:
            posted = self._posted.pop(constraint, None)
            if posted is None:
                return
            task, _ = posted
            task.mask, task.error = message.mask, message.error
            task.finished, task.is_complete = message.finished, message.is_complete
            task.last_seconds = message.last_seconds
            self._done.append(task)
            self._returned.notify()

    def _has_quick(self, now: float) -> bool:
        """Whether a missing mask may still arrive soon."""
        return any(
            task.last_seconds <= QUICK_SECONDS and now - posted_at < STUCK_SECONDS
            for task, posted_at in self._posted.values()
        )


def constraint_of(task: MaskTask[Answer]) -> RemoteConstraint:
    assert isinstance(task.constraint, RemoteConstraint)
    return task.constraint
