"""Writers of an answer's chunks: as the chunks themselves, or in a form that is faster to create. A sink receives them
without waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from ..schema.chat import ChatCompletionChunk
from ..schema.completions import CompletionChunk

Chunk = TypeVar("Chunk", ChatCompletionChunk, CompletionChunk)
Chunk_contra = TypeVar("Chunk_contra", ChatCompletionChunk, CompletionChunk, contravariant=True)
Written = TypeVar("Written")
Written_co = TypeVar("Written_co", covariant=True)
Sent_contra = TypeVar("Sent_contra", contravariant=True)


class Writer(Protocol[Chunk_contra, Written_co]):
    def chunk(self, chunk: Chunk_contra) -> Written_co: ...

    def text(self, index: int, text: str, text_chunk: Callable[[int, str], Chunk_contra]) -> Written_co:
        """Write the chunk that ``text_chunk`` creates from a choice's index and a text, without anything else. Most
        chunks are of this kind.
        """


class ChunkWriter:
    """Implements `Writer`: returns the chunks unchanged."""

    def chunk(self, chunk: Chunk) -> Chunk:
        return chunk

    def text(self, index: int, text: str, text_chunk: Callable[[int, str], Chunk]) -> Chunk:
        return text_chunk(index, text)


class Sink(Protocol[Sent_contra]):
    """Sends a part of a streamed answer at once, past the task and the generators through which its other parts go:
    these take several times as long as all work on a token.

    It may be used only while the reader of these generators waits for the next part and has received all before it.
    """

    @property
    def is_ready(self) -> bool:
        """Whether `send` can send a part now. Otherwise it must be yielded: the answer has not begun, or its client
        reads more slowly than the model writes.
        """

    def send(self, part: Sent_contra) -> None:
        """Only while `is_ready`."""
