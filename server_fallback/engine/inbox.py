"""The inbox: what event loops tell the engine's thread, and whether it takes more. The one place that both sides change, under one lock."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Condition

from nearfar.compiler.errors import NearfarError, QueueFull

from .answer import Answer
from .embedder import EmbedJob


@dataclass(slots=True)
class Letters:
    """What came in since the engine looked last. ``abandoned`` are answers that nobody reads any more."""

    arrivals: list[Answer] = field(default_factory=list)
    abandoned: list[Answer] = field(default_factory=list)
    jobs: list[EmbedJob] = field(default_factory=list)
    stop: bool = False


class Inbox:
    """``capacity``: requests that may be unfinished at once."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._changed = Condition()
        self._letters = Letters()
        self._unfinished = 0
        self._refusal: NearfarError | None = None

    @property
    def num_arrivals(self) -> int:
        """Requests that the engine has not seen yet."""
        return len(self._letters.arrivals)

    @property
    def num_unfinished(self) -> int:
        """Requests that are there and not answered."""
        return self._unfinished

    def add(self, item: Answer | EmbedJob) -> None:
        """Raises QueueFull, or why nothing is taken any more."""
        with self._changed:
            if self._refusal is not None:
                raise self._refusal
            if self._unfinished >= self._capacity:
                raise QueueFull(f"{self._unfinished} requests run or wait, which is the most; try again later", limit=self._capacity)
            self._unfinished += 1
            if isinstance(item, Answer):
                self._letters.arrivals.append(item)
            else:
                self._letters.jobs.append(item)
            self._changed.notify_all()

    def abandon(self, answer: Answer) -> None:
        with self._changed:
            self._letters.abandoned.append(answer)
            self._changed.notify_all()

    def take(self, *, wait: bool) -> Letters:
        """What came in; ``wait`` until something does."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._letters != Letters())
            letters, self._letters = self._letters, Letters(stop=self._letters.stop)
            return letters

    def finished(self) -> None:
        """One request is answered, or cannot be."""
        with self._changed:
            self._unfinished -= 1
            self._changed.notify_all()

    def refuse(self, reason: NearfarError) -> None:
        """Take nothing more; the first reason stays."""
        with self._changed:
            self._refusal = self._refusal or reason

    def wait_empty(self, timeout_seconds: float) -> bool:
        """Wait until every request is answered; False where that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._unfinished == 0, timeout_seconds)

    def stop(self) -> None:
        """Ask the engine's thread to end."""
        with self._changed:
            self._letters.stop = True
            self._changed.notify_all()
