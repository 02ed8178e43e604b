"""Drain: how a server stops. It accepts no new requests, lets running ones finish until a time limit, and ends the rest
with an error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from nearfar.compiler.runtime.errors import DeadlineExceeded, Unavailable

Result = TypeVar("Result")
POLL_SECONDS = 0.02
SHUTTING_DOWN = "the server is shutting down; send the request again, another server may answer"


class ClientGone(Exception):
    """The connection ended before the answer did, so the error cannot be sent to anyone."""


class Drain:
    """``started``: no new request is accepted. ``busy`` returns whether any request is in progress, including one whose
    body is still being read. ``begin`` ends what no client waits for.
    """

    def __init__(self, busy: Callable[[], bool], begin: Callable[[], None] = lambda: None) -> None:
        self.started = False
        self._busy, self._begin = busy, begin
        self._give_up = float("inf")
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, Result], receive: Receive, deadline: float) -> Result:
        """Return the result of ``work``. If its client disconnects, its deadline passes, or the drain is over, cancel
        it and wait for its end.

        ``receive`` belongs to the connection, whose body has been read; ``deadline`` is a time of `time.monotonic`.
        Raises the errors of the work, ClientGone, DeadlineExceeded or Unavailable.
        """
        task = asyncio.create_task(work)
        gone = asyncio.create_task(disconnected(receive))
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
            raise DeadlineExceeded(
                "the answer took longer than the request allows; allow more time, or request a shorter answer"
            )
        finally:
            self._running.discard(task)
            task.cancel()
            gone.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    async def finish(self, seconds: float) -> None:
        """Return when no request is in progress. After ``seconds``, end those that still generate."""
        self.started = True
        self._begin()
        self._give_up = min(self._give_up, time.monotonic() + seconds)
        while self._busy() and time.monotonic() < self._give_up:
            await asyncio.sleep(POLL_SECONDS)
        for task in self._running:
            task.cancel()
        while self._running:
            await asyncio.sleep(POLL_SECONDS)

    def hurry(self) -> None:
        """End the wait now."""
        self._give_up = 0.0


async def disconnected(receive: Receive) -> None:
    """Returns when the connection, whose body has been read, is closed."""
    while (await receive())["type"] != "http.disconnect":
        pass
