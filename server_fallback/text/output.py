"""Output: where an answer goes, chunk by chunk: to the connection of its client, or to code that reads the chunks.

The engine's event loop calls it with each piece of text as soon as that exists, without a task or a generator between:
these take several times as long as all work on a token.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping
from typing import Any, Generic, Protocol, TypeVar

from ..schema.chat import ChatCompletionChunk
from ..schema.common import Usage
from ..schema.completions import CompletionChunk

ChunkT = TypeVar("ChunkT", ChatCompletionChunk, CompletionChunk)
ChunkIn = TypeVar("ChunkIn", ChatCompletionChunk, CompletionChunk, contravariant=True)
AnswerT = TypeVar("AnswerT")
AnswerOut = TypeVar("AnswerOut", covariant=True)
# Writes a chunk as an event; None if the client requested nothing of it.
Encode = Callable[[ChunkT], bytes | None]
NO_ENDS: Mapping[int, str] = {}


class Output(Protocol[ChunkIn]):
    """Receives one answer, on one event loop. An error of a method ends the answer."""

    @property
    def encode(self) -> Callable[[ChunkIn], bytes | None] | None:
        """How chunks become events, if `block` accepts them: those of two texts differ only in the text."""

    @property
    def has_room(self) -> bool:
        """False while the answer has not begun, or its reader is slower than the model. What is sent then is kept."""

    async def room(self) -> None:
        """Return once the reader has received all that was kept. A task that sends awaits this after each part."""

    def chunk(self, chunk: ChunkIn) -> None: ...

    def text(self, index: int, text: str, text_chunk: Callable[[int, str], ChunkIn]) -> None:
        """Send the chunk that ``text_chunk`` creates from a choice's index and a text, without anything else. Most
        chunks are of this kind.
        """

    def block(
        self, sent: bytes, texts: Collection[int], ends: Mapping[int, str] = NO_ENDS, usage: Usage | None = None
    ) -> None:
        """Send events that ``encode`` would write. ``texts`` are the choices that have a text or a part of a call in
        them, ``ends`` the finish reasons of those that end.
        """


# An answer that goes to an output. Cancelling it ends the answer.
Answering = Callable[[Output[ChunkT]], Coroutine[Any, Any, None]]


class Chunks(Generic[ChunkT]):
    """An `Output` whose chunks are read by ``add``."""

    encode = None
    has_room = True

    def __init__(self, add: Callable[[Any], None]) -> None:
        self.chunk: Callable[[ChunkT], None] = add

    async def room(self) -> None: ...

    def text(self, index: int, text: str, text_chunk: Callable[[int, str], ChunkT]) -> None:
        self.chunk(text_chunk(index, text))

    def block(self, *_: object) -> None:
        raise AssertionError("chunks are not read as events")


class Changed(Chunks[ChunkT]):
    """Sends each chunk on, changed by ``change``."""

    def __init__(self, output: Output[ChunkT], change: Callable[[ChunkT], ChunkT]) -> None:
        self._output: Output[ChunkT] = output
        self._change: Callable[[ChunkT], ChunkT] = change
        super().__init__(self._send)

    @property
    def has_room(self) -> bool:  # type: ignore[override]
        has_room: bool = self._output.has_room
        return has_room

    async def room(self) -> None:
        await self._output.room()

    def block(self, *events: Any) -> None:
        """Events that are not those of chunks need no change."""
        self._output.block(*events)

    def _send(self, chunk: ChunkT) -> None:
        self._output.chunk(self._change(chunk))


class Fold(Protocol[ChunkIn, AnswerOut]):
    """Adds up the chunks of an answer."""

    def add(self, chunk: ChunkIn) -> None: ...

    def answer(self) -> AnswerOut:
        """The complete answer. Raises Unavailable if the chunks ended too early."""


async def folded(answering: Answering[ChunkT], fold: Fold[ChunkT, AnswerT]) -> AnswerT:
    """The complete answer. Raises the errors of the answer."""
    await answering(Chunks(fold.add))
    return fold.answer()


async def streamed(answering: Answering[ChunkT]) -> AsyncGenerator[ChunkT, None]:
    """The chunks of an answer, which ends if this is closed. Raises the errors of the answer."""
    pending = _Pending[ChunkT]()
    task = asyncio.ensure_future(answering(pending))
    task.add_done_callback(lambda _: pending.changed.set())
    try:
        while True:
            while pending.chunks:
                yield pending.take()
            if task.done():
                break
            pending.changed.clear()
            await pending.changed.wait()
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Pending(Chunks[ChunkT]):
    def __init__(self) -> None:
        self.chunks: deque[ChunkT] = deque()
        super().__init__(self._add)
        self.changed = asyncio.Event()
        self._taken = asyncio.Event()

    @property
    def has_room(self) -> bool:  # type: ignore[override]
        return not self.chunks

    async def room(self) -> None:
        while self.chunks:
            self._taken.clear()
            await self._taken.wait()

    def take(self) -> ChunkT:
        self._taken.set()
        chunk: ChunkT = self.chunks.popleft()
        return chunk

    def _add(self, chunk: ChunkT) -> None:
        self.chunks.append(chunk)
        self.changed.set()
