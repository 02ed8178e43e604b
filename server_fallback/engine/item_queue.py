"""The items of one answer on their way to its reader, on one event loop."""

from __future__ import annotations

import asyncio
from collections import deque

from .page_blocks import PageBlock
from .request import AnswerEnd, GeneratedToken, PromptLogprobs, TokenHandler

# The items of an answer: log-probabilities of the prompt if requested, the tokens, then the completion or the error
# that ended it. An export has blocks of pages instead of tokens.
Item = PromptLogprobs | GeneratedToken | AnswerEnd | PageBlock | BaseException


class ItemQueue:
    """``handle`` handles tokens while the reader waits; see `TokenHandler`."""

    def __init__(self, handle: TokenHandler | None = None) -> None:
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._items: deque[Item] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Item) -> None:
        waiter, handle = self._waiter, self._handle
        # While the reader waits, the queue is empty. A reader that was cancelled has stopped waiting.
        if handle is not None and waiter is not None and isinstance(item, GeneratedToken) and not waiter.done():
            try:
                if handle(item):
                    return
            except BaseException as error:
                # A panic of the tokenizers library is not an Exception. The reader raises it.
                item = error
        self._items.append(item)
        if waiter is not None:
            # Further items of the same step wake nobody up.
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    async def next(self) -> list[PromptLogprobs | GeneratedToken | AnswerEnd]:
        """The items since the last call, at least one: several, if their reader was slower than the engine. Raises the
        error that ended the answer, after all items before it.
        """
        while not self._items:
            self._waiter = self._loop.create_future()
            await self._waiter
        items: list[PromptLogprobs | GeneratedToken | AnswerEnd] = []
        while self._items:
            item = self._items.popleft()
            if not isinstance(item, BaseException):
                assert not isinstance(item, PageBlock), "only an export has blocks"
                items.append(item)
            elif items:
                self._items.appendleft(item)
                break
            else:
                raise item
        return items


class BlockQueue:
    """The items of one export on their way to its reader."""

    def __init__(self) -> None:
        self._items = asyncio.Queue[Item]()

    def put(self, item: Item) -> None:
        self._items.put_nowait(item)

    async def next(self) -> PageBlock | AnswerEnd:
        """The next block, and last the end. Raises the error that ended the export."""
        item = await self._items.get()
        if isinstance(item, BaseException):
            raise item
        assert isinstance(item, PageBlock | AnswerEnd), "an export has no tokens"
        return item
