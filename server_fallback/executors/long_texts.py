"""LongTexts runs work on long texts on threads, so that neither the event loop nor other clients wait for it."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from ..text.text_size import is_longer

# Characters. Longer requests are read on a thread: a tokenizer needs most of a second for a megabyte of text.
INLINE_CHARACTERS = 16_384
Result = TypeVar("Result")


class LongTexts:
    """The long texts of one model. Of each client one at a time is read, on one of a few threads; those of other
    clients are read beside it, and short texts at once. Used from one event loop.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = ThreadPoolExecutor(threads or max(2, (os.cpu_count() or 1) // 2), "nearfar-texts")
        self._turns: dict[str, asyncio.Lock] = {}
        self._requests = Counter[str]()

    async def run(self, given: object, client: str, work: Callable[[], Result]) -> Result:
        """The result of ``work``, whose input is ``given``. If the caller is cancelled, the client's next turn begins
        when the work has ended, because a thread cannot be stopped.
        """
        if not is_longer(given, INLINE_CHARACTERS):
            return work()
        async with self._turn(client):
            running = asyncio.get_running_loop().run_in_executor(self._threads, work)
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                await asyncio.wait([running])
                raise

    @asynccontextmanager
    async def _turn(self, client: str) -> AsyncIterator[None]:
        self._requests[client] += 1
        try:
            async with self._turns.setdefault(client, asyncio.Lock()):
                yield
        finally:
            self._requests[client] -= 1
            if not self._requests[client]:
                del self._requests[client], self._turns[client]
