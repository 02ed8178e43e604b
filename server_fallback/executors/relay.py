"""Relay: an upstream's streamed answer as chunks, or as the events that our client receives, from block of bytes to
block of bytes.

For events, runs of them that differ only in their text are rewritten together (`event_template.py`); every other event
is parsed, checked and written as a chunk of its own. The result is the same for each event, however the bytes were cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from nearfar.compiler.runtime.errors import NearfarError

from ..text.output import ChunkT, Output
from .event_template import EventTemplate, template_of
from .sse import CompleteEvents, data_of, decode, event_end
from .upstream_answers import UpstreamAnswer, checked, has_content
from .upstream_bounds import Bounds

# Tool calls and choices have templates of their own. Answers whose events all differ, as with log-probabilities, must
# not cost a comparison with many.
MOST_TEMPLATES = 16

# Parses the data of an event, and raises the error that it reports.
ReadEvent = Callable[[str], dict[str, Any]]


class Relay(Generic[ChunkT]):
    """One attempt at one answer, whose chunks of class ``kind`` go to ``output``. ``on_begin`` is called before the
    first.
    """

    def __init__(self, kind: type[ChunkT], name: str, bounds: Bounds, output: Output[ChunkT], read: ReadEvent) -> None:
        self._kind: type[ChunkT] = kind
        self.output: Output[ChunkT] = output
        self._name, self._read = name, read
        self._answer = UpstreamAnswer(name, bounds)
        self._complete = CompleteEvents()
        self._templates: list[EventTemplate] = []
        self._has_end = False
        # Runs of events that are sent together, and the choices with a text in them.
        self._sent, self._texts = list[bytes](), set[int]()
        self.began = False
        self.on_begin: Callable[[], None] = lambda: None
        self.failure: NearfarError | None = None

    @property
    def ended(self) -> bool:
        """Whether all choices have ended."""
        return self._answer.ended

    @property
    def is_cut_off(self) -> bool:
        """Whether a choice has begun, and has not ended."""
        return self._answer.is_cut_off

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be read."""
        return self._has_end or self._answer.is_over or self.failure is not None

    def add(self, part: bytes) -> None:
        """Send what a part of the upstream's answer holds.

        An error, for an answer that is not in OpenAI's form or one that ``read`` raises, becomes ``failure``.
        """
        try:
            block, start = self._complete.add(part), 0
            while start < len(block) and not self.is_over:
                end = None if self.ended else self._run(block, start)
                if end is None:
                    end = event_end(block, start)
                    self._add_event(block[start:end])
                start = end
        except NearfarError as error:
            self.failure = error
        self._flush()

    def end(self) -> None:
        """Send the rest, with the usage. Raises Unavailable for an answer without a chunk."""
        for value in self._answer.end():
            self._send(value)

    def _run(self, block: bytes, start: int) -> int | None:
        """Add the run of events at ``start``, and return its end; None if there is none."""
        for number, template in enumerate(self._templates):
            run = template.run(block, start)
            if run is not None and self._answer.add_pieces(template.index, run.pieces, run.text):
                self._sent.append(run.sent)
                if run.pieces:
                    self._texts.add(template.index)
                if number:
                    # The next run is likely to be of the same template.
                    self._templates.insert(0, self._templates.pop(number))
                return run.end
        return None

    def _add_event(self, event: bytes) -> None:
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
        self._send(chunk)
        if (
            self.output.encode is not None
            and len(self._templates) < MOST_TEMPLATES
            and any(map(has_content, chunk["choices"]))
        ):
            template = template_of(event, value, self._sent_for)
            if template is not None and template not in self._templates:
                self._templates.insert(0, template)

    def _send(self, value: dict[str, Any]) -> None:
        chunk = checked(self._kind, value, self._name)
        self._flush()
        if not self.began:
            self.began = True
            self.on_begin()
        self.output.chunk(chunk)

    def _flush(self) -> None:
        if self._sent:
            self.output.block(b"".join(self._sent), self._texts)
            self._sent, self._texts = [], set()

    def _sent_for(self, value: dict[str, Any]) -> bytes | None:
        """The event that we send for an object whose answer is without limits."""
        assert self.output.encode is not None
        chunk = UpstreamAnswer(self._name, Bounds(choices=1 << 30)).add(value)
        return None if chunk is None else self.output.encode(checked(self._kind, chunk, self._name))
