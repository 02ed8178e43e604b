"""Updates: the queue of what the attempts of one answer send, and of its timers, which `RunningAnswer` reads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

from ...schema.common import TokenLogprob
from ..sides.answer_piece import AnswerPiece
from .attempt import Attempt
from .timers import Due

# At most this many pieces of the sides wait for a slow reader.
MAX_PENDING_UPDATES = 64

# None: the attempt ended without an error.
Update = tuple[Attempt, AnswerPiece | Exception | None] | Due


class Updates:
    def __init__(self) -> None:
        self._queue: asyncio.Queue[Update] = asyncio.Queue()
        self._room = asyncio.Semaphore(MAX_PENDING_UPDATES)
        # Those that were read before the decision, for `next` to return again.
        self._held: deque[Update] = deque()

    async def put(self, attempt: Attempt, output: AnswerPiece | Exception | None) -> None:
        """Returns when the queue has room for it."""
        await self._room.acquire()
        self._queue.put_nowait((attempt, output))

    def put_due(self, due: Due) -> None:
        self._queue.put_nowait(due)

    async def next(self) -> Update:
        return self._held.popleft() if self._held else await self._read()

    async def hold(self) -> AnswerPiece | Exception | None:
        """The next output of an attempt, before any timer is set. `next` will return it, unless it is dropped."""
        update = await self._read()
        self._held.append(update)
        assert not isinstance(update, Due)
        return update[1]

    def held_tokens(self) -> Iterator[TokenLogprob]:
        for update in self._held:
            if not isinstance(update, Due) and isinstance(update[1], AnswerPiece):
                yield from update[1].tokens

    def drop_held(self) -> None:
        self._held.clear()

    async def _read(self) -> Update:
        update = await self._queue.get()
        if not isinstance(update, Due):
            self._room.release()
        return update
