"""EngineThread: the one thread of an engine, which works until its inbox is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Thread

from nearfar.compiler.runtime.errors import NearfarError, Unavailable

from .inbox import Inbox


class EngineThread:
    """Starts ``loop``, which returns when the ``inbox`` stops it."""

    def __init__(self, loop: Callable[[], None], inbox: Inbox, name: str) -> None:
        self._inbox = inbox
        self._thread = Thread(target=loop, name=name, daemon=True)
        self._thread.start()

    async def close(self, drain_seconds: float, reason: NearfarError | None) -> None:
        """Refuse new requests with ``reason``, by default Unavailable, wait up to ``drain_seconds`` for unfinished
        ones, and end the loop. A second call waits for the same end.
        """
        self._inbox.refuse(reason or Unavailable("this model is being unloaded; try again later"))
        if drain_seconds > 0:
            await asyncio.to_thread(self._inbox.wait_empty, drain_seconds)
        self._inbox.stop()
        await asyncio.to_thread(self._thread.join)
