"""EngineThread: an engine's one thread, which works until its inbox is stopped, and what any thread may ask of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from threading import Thread
from typing import Generic, Protocol, TypeVar

from nearfar.compiler.runtime.errors import NearfarError, Unavailable

from .inbox import Inbox
from .stats import EngineStats


class Loop(Protocol):
    def run(self) -> None:
        """Returns when the inbox stops it. Raises if the device is given up."""

    def end(self, reason: NearfarError, *, failed: bool) -> None:
        """Called after `run`, whose inbox accepts nothing more: what is unfinished fails with ``reason``."""

    def stats(self) -> EngineStats:
        """Callable from any thread."""
        ...


AnyLoop = TypeVar("AnyLoop", bound=Loop)


class EngineThread(Generic[AnyLoop]):
    """The base of the engines: starts ``loop``, which reads the ``inbox``."""

    def __init__(self, loop: AnyLoop, inbox: Inbox, name: str) -> None:
        self._loop, self._inbox = loop, inbox
        # The error that ended the loop before it was closed.
        self._failure: NearfarError | None = None
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        reason: NearfarError = Unavailable("the engine was closed before the answer was complete; try again later")
        try:
            self._loop.run()
        except NearfarError as error:
            reason = self._failure = error
        except BaseException as error:
            reason = self._failure = Unavailable(f"the engine stopped because of an internal error:  {error!r}")
            raise
        finally:
            self._inbox.refuse(reason)
            self._loop.end(reason, failed=self._failure is not None)

    def stats(self) -> EngineStats:
        """A snapshot; callable from any thread."""
        return replace(self._loop.stats(), failure=self._failure)

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
