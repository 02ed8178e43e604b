"""EngineThread: an engine's one thread, which works until its inbox is stopped, and what any thread may ask of it."""

from __future__ import annotations

import asyncio
from threading import Thread
from typing import Generic, Protocol, TypeVar

from nearfar.compiler.runtime.errors import NearfarError, Unavailable

from .inbox import Inbox
from .stats import EngineStats


class Loop(Protocol):
    def run(self) -> None:
        """Returns when the inbox stops it."""

    def stats(self) -> EngineStats:
        """Callable from any thread."""
        ...


AnyLoop = TypeVar("AnyLoop", bound=Loop)


class EngineThread(Generic[AnyLoop]):
    """The base of the engines: starts ``loop``, which reads the ``inbox``."""

    def __init__(self, loop: AnyLoop, inbox: Inbox, name: str) -> None:
        self._loop, self._inbox = loop, inbox
        self._thread = Thread(target=loop.run, name=name, daemon=True)
        self._thread.start()

    def stats(self) -> EngineStats:
        """A snapshot; callable from any thread."""
        return self._loop.stats()

    @property
    def step_seconds(self) -> float:
        """How long the engine's thread has been busy with the current step; 0 while it waits for requests."""
        return self._inbox.busy_seconds

    async def close(self, drain_seconds: float = 0.0, reason: NearfarError | None = None) -> None:
        """Refuse new requests, wait up to ``drain_seconds`` for unfinished ones, fail the others, and close the runner.

        New requests fail with ``reason``, by default Unavailable. A second call waits for the same end.
        """
        self._inbox.refuse(reason or Unavailable("this model is being unloaded; try again later"))
        if drain_seconds > 0:
            await asyncio.to_thread(self._inbox.wait_empty, drain_seconds)
        self._inbox.stop()
        await asyncio.to_thread(self._thread.join)
