"""Drain: how a server stops. Nothing new begins, what runs may end until a time limit, and the rest is told and cut off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from nearfar.compiler.errors import DeadlineExceeded, Unavailable

Result = TypeVar("Result")
POLL_SECONDS = 0.02
SHUTTING_DOWN = "the server is shutting down; ask again, another one may answer"


class ClientGone(Exception):
    """The connection ended before the answer did. Nobody is left to be told."""


class Drain:
    """``started``: nothing new begins. ``busy`` tells whether any request is under way, be it that its body is still read."""

    def __init__(self, busy: Callable[[], bool]) -> None:
        self.started = False
        self._busy = busy
        self._give_up = float("inf")
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, Result], receive: Receive, deadline: float) -> Result:
        """The result of ``work``, cancelled, and waited for, when its client goes, its deadline comes, or the drain is over.

        ``receive`` is the connection's, its body already read; ``deadline`` is of `time.monotonic`.
        Raises what the work raises, ClientGone, DeadlineExceeded or Unavailable.
        """
        task = asyncio.create_task(work)
        gone = asyncio.create_task(_disconnect(receive))
        self._running.add(task)
        try:
            left = max(0.0, deadline - time.monotonic())
            await asyncio.wait({task, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                if task.cancelled():
                    raise Unavailable(SHUTTING_DOWN)
                return task.result()
            if gone.done():
                raise ClientGone
            raise DeadlineExceeded("the answer took longer than the request allows")
        finally:
            self._running.discard(task)
            task.cancel()
            gone.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    async def finish(self, seconds: float) -> None:
        """Return when no request is under way; after ``seconds`` cut off those that generate."""
        self.started = True
        self._give_up = min(self._give_up, time.monotonic() + seconds)
        while self._busy() and time.monotonic() < self._give_up:
            await asyncio.sleep(POLL_SECONDS)
        for task in self._running:
            task.cancel()
        while self._running:
            await asyncio.sleep(POLL_SECONDS)

    def hurry(self) -> None:
        """Wait no longer."""
        self._give_up = 0.0


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
