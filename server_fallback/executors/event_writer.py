"""EventWriter: an answer of our own engine as the events that the client receives.

A chunk with only a text is not created: its event is that of the choice's first such chunk, with the text replaced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring
from typing import Generic, TypeVar

from ..schema.chat import ChatCompletionChunk
from ..schema.completions import CompletionChunk
from .event_template import MARK
from .executor import Encode, EventBlock

Chunk = TypeVar("Chunk", ChatCompletionChunk, CompletionChunk)
NO_ENDS: Mapping[int, str] = {}


class EventWriter(Generic[Chunk]):
    """Implements `Writer`."""

    def __init__(self, encode: Encode[Chunk]) -> None:
        self._encode: Encode[Chunk] = encode
        # The bytes before and after the text of each choice, and the choice.
        self._around: dict[int, tuple[bytes, bytes, frozenset[int]]] = {}

    def chunk(self, chunk: Chunk) -> EventBlock:
        texts = frozenset(choice.index for choice in chunk.choices if choice.has_text)
        ends = {choice.index: choice.finish_reason for choice in chunk.choices if choice.finish_reason is not None}
        return EventBlock(self._encode(chunk) or b"", texts, ends, chunk.usage)

    def text(self, index: int, text: str, text_chunk: Callable[[int, str], Chunk]) -> EventBlock:
        around = self._around.get(index)
        if around is None:
            event = self._encode(text_chunk(index, MARK))
            assert event is not None
            before, _, after = event.partition(json.dumps(MARK).encode())
            around = self._around[index] = before, after, frozenset((index,))
        before, after, texts = around
        return EventBlock(before + encode_basestring(text).encode() + after, texts, NO_ENDS)
