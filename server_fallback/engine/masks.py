"""The interface of the engine to a service that computes the masks of constrained answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from .mask_task import MaskTask

if TYPE_CHECKING:
    from .answer import Answer


class Masks(Protocol):
    """The engine's thread calls all methods but `num_first`."""

    @property
    def pending(self) -> set[MaskTask[Answer]]:
        """Tasks that were posted and neither returned nor cancelled."""

    @property
    def num_first(self) -> int:
        """The number of answers that wait for their first mask. Callable from any thread."""

    def post(self, tasks: Iterable[MaskTask[Answer]]) -> None:
        """Run each task once."""

    def collect(self, wait_seconds: float | None = None) -> tuple[list[MaskTask[Answer]], list[MaskTask[Answer]]]:
        """The tasks that are done, and those that run and are over their budget.

        By default it waits until all quick tasks are done, within the limits on waiting; otherwise ``wait_seconds`` for
        any task.
        """

    def cancel(self, task: MaskTask[Answer]) -> None: ...

    def close(self) -> None: ...


class SavedWaits:
    """The time that the engine may wait for masks: at most half of the time over all steps, and ``max_wait_seconds`` in
    one step. Unused time is saved, for up to NUM_SAVED steps that wait as long as they can.
    """

    NUM_SAVED = 5

    def __init__(self, max_wait_seconds: float) -> None:
        self._max_wait_seconds = max_wait_seconds
        self._saved_seconds = self.NUM_SAVED * max_wait_seconds
        self._waited_at: float | None = None

    def begin(self, now: float) -> float:
        """The time until which a step may wait from now on."""
        passed = 0.0 if self._waited_at is None else now - self._waited_at
        self._saved_seconds = min(self._saved_seconds + passed, self.NUM_SAVED * self._max_wait_seconds)
        self._waited_at = now
        return now + min(self._saved_seconds, self._max_wait_seconds)

    def end(self, now: float) -> None:
        assert self._waited_at is not None
        self._saved_seconds -= now - self._waited_at
        self._waited_at = now
