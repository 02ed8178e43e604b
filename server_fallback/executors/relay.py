"""Relay: an upstream's streamed answer as the events that our client receives, from block of bytes to block of bytes.

Runs of events that differ only in their text are rewritten together (`event_template.py`); every other event is parsed,
checked and written as a chunk of its own. The result is the same for each event, however the bytes were cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from nearfar.compiler.errors import NearfarError

from ..schema.chat import ChatCompletionChunk
from ..schema.completions import CompletionChunk
from .event_template import EventTemplate, template_of
from .executor import Encode, EventBlock
from .sse import CompleteEvents, data_of, decode, event_end
from .upstream_answers import UpstreamAnswer, checked, has_content
from .upstream_bounds import Bounds

# Tool calls and choices have templates of their own. Answers whose events all differ, as with log-probabilities, must
# not cost a comparison with many.
MOST_TEMPLATES = 16

# Parses the data of an event, and raises the error that it reports.
ReadEvent = Callable[[str], dict[str, Any]]
Chunk = TypeVar("Chunk", ChatCompletionChunk, CompletionChunk)


class Relay(Generic[Chunk]):
    """One attempt at one answer."""

    def __init__(
        self,
        kind: type[Chunk],
        name: str,
        bounds: Bounds,
        encode: Encode[Chunk],
        read: ReadEvent,
    ) -> None:
        self._kind: type[Chunk] = kind
        self._encode: Encode[Chunk] = encode
        self._name, self._read = name, read
        self._answer = UpstreamAnswer(name, bounds)
        self._complete = CompleteEvents()
        self._templates: list[EventTemplate] = []
        self._has_end = False
        self.failure: NearfarError | None = None

    @property
    def ended(self) -> bool:
        """Whether all choices have ended."""
        return self._answer.ended

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be read."""
        return self._has_end or self._answer.is_over

    def add(self, part: bytes) -> EventBlock | None:
        """The events for a part of the upstream's answer; None if there are none.

        An error, for an answer that is not in OpenAI's form or one that ``read`` raises, becomes ``failure``, because
        the events before it are still to be sent.
        """
        sent, texts, ends = list[bytes](), set[int](), dict[int, str]()
        try:
            block, start = self._complete.add(part), 0
            while start < len(block) and not self.is_over:
                end = None if self.ended else self._run(block, start, sent, texts)
                if end is None:
                    end = event_end(block, start)
                    self._add_event(block[start:end], sent, texts, ends)
                start = end
        except NearfarError as error:
            self.failure = error
        return EventBlock(b"".join(sent), frozenset(texts), ends) if sent else None

    def end(self) -> EventBlock:
        """The events of the rest, with the usage. Raises Unavailable for an answer without a chunk."""
        sent, texts, ends = list[bytes](), set[int](), dict[int, str]()
        for value in self._answer.end():
            chunk = self._send(value, sent, texts, ends)
        return EventBlock(b"".join(sent), frozenset(texts), ends, chunk.usage)

    def _run(self, block: bytes, start: int, sent: list[bytes], texts: set[int]) -> int | None:
        """Add the run of events at ``start``, and return its end; None if there is none."""
        for number, template in enumerate(self._templates):
            run = template.run(block, start)
            if run is not None and self._answer.add_pieces(template.index, run.pieces, run.text):
                sent.append(run.sent)
                if run.pieces:
                    texts.add(template.index)
                if number:
                    # The next run is likely to be of the same template.
                    self._templates.insert(0, self._templates.pop(number))
                return run.end
        return None

    def _add_event(self, event: bytes, sent: list[bytes], texts: set[int], ends: dict[int, str]) -> None:
        data = data_of(event)
        if data is None:
            return
        if data == b"[DONE]":
            self._has_end = True
            return
        value = self._read(decode(data))
        chunk = self._answer.add(value)
        if chunk is None:
            return
        self._send(chunk, sent, texts, ends)
        if len(self._templates) < MOST_TEMPLATES and any(map(has_content, chunk["choices"])):
            template = template_of(event, value, self._sent_for)
            if template is not None and template not in self._templates:
                self._templates.insert(0, template)

    def _send(self, value: dict[str, Any], sent: list[bytes], texts: set[int], ends: dict[int, str]) -> Chunk:
        chunk = checked(self._kind, value, self._name)
        if (event := self._encode(chunk)) is not None:
            sent.append(event)
        for choice in value["choices"]:
            if has_content(choice):
                texts.add(choice["index"])
            if choice["finish_reason"] is not None:
                ends[choice["index"]] = choice["finish_reason"]
        return chunk

    def _sent_for(self, value: dict[str, Any]) -> bytes | None:
        """The event that we send for an object whose answer is without limits."""
        chunk = UpstreamAnswer(self._name, Bounds(choices=1 << 30)).add(value)
        return None if chunk is None else self._encode(checked(self._kind, chunk, self._name))
