"""The server's side of `remote_masks`: it computes the masks that an engine in another process requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from ..engine.mask_pool import MaskPool
from ..engine.mask_task import MaskTask
from ..engine.request import Constraint
from .messages import Mask, MaskTurns

# How often running masks are compared with their budgets.
CHECK_SECONDS = 0.05


class MaskService:
    """Belongs to the running event loop, on which ``send`` is called."""

    def __init__(self, send: Callable[[Mask], None]) -> None:
        self._loop, self._send = asyncio.get_running_loop(), send
        self._pool = MaskPool[int](0.0, self._returned)
        self._tasks: dict[int, MaskTask[int]] = {}
        self._check: asyncio.TimerHandle | None = None

    def begin(self, answer: int, constraint: Constraint) -> None:
        self._tasks[answer] = MaskTask(answer, constraint)

    def end(self, answer: int) -> None:
        task = self._tasks.pop(answer, None)
        if task is not None:
            self._pool.cancel(task)

    def run(self, message: MaskTurns) -> None:
        tasks = []
        for answer, token_id, is_last in message.turns:
            task = self._tasks.get(answer)
            # The answer may have ended in the meantime.
            if task is None:
                continue
            if token_id is not None:
                task.advance(token_id, is_last=is_last)
            tasks.append(task)
        self._pool.post(tasks)
        if self._check is None:
            self._check = self._loop.call_later(CHECK_SECONDS, self._check_budgets)

    def close(self) -> None:
        """This may take some seconds."""
        if self._check is not None:
            self._check.cancel()
        self._tasks.clear()
        self._pool.close()
        # It may be its owner's, whose this is.
        self._send = lambda _: None

    def _returned(self) -> None:
        """Runs on one of the pool's threads."""
        # A mask may take longer than its event loop lives.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        done, over_budget = self._pool.collect(0.0)
        for task in done:
            ends = task.error is not None or task.finished or task.is_last
            error = task.error if ends or not task.is_over_budget() else task.over_budget()
            self._send(Mask(task.owner, task.mask, task.finished, task.is_complete, error, task.last_seconds))
        for task in over_budget:
            self._send(Mask(task.owner, None, False, False, task.over_budget(), task.last_seconds))
            self.end(task.owner)

    def _check_budgets(self) -> None:
        self._check = None
        self._collect()
        if self._pool.pending:
            self._check = self._loop.call_later(CHECK_SECONDS, self._check_budgets)
