"""The items of one answer on their way to its reader, on one event loop."""

from __future__ import annotations

import asyncio
from collections import deque

from .request import Completion, GeneratedToken, PromptLogprobs

# The items of an answer: log-probabilities of the prompt if requested, the tokens, then the completion or the error
# that ended it.
Item = PromptLogprobs | GeneratedToken | Completion | BaseException


class ItemQueue:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[Item] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Item) -> None:
        self._items.append(item)
        waiter = self._waiter
        if waiter is not None:
            # Further items of the same step wake nobody up.
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    async def next(self) -> list[PromptLogprobs | GeneratedToken | Completion]:
        """The items since the last call, at least one: several, if their reader was slower than the engine. Raises the
        error that ended the answer, after all items before it.
        """
        while not self._items:
            self._waiter = self._loop.create_future()
            await self._waiter
        items: list[PromptLogprobs | GeneratedToken | Completion] = []
        while self._items:
            item = self._items.popleft()
            if not isinstance(item, BaseException):
                items.append(item)
            elif items:
                self._items.appendleft(item)
                break
            else:
                raise item
        return items
