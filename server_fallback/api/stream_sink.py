"""StreamSink: writes the events of a streamed answer to its connection, without a task or an ASGI message for each."""

from __future__ import annotations

from typing import Protocol

from ..executors.executor import EventBlock
from .answer_record import AnswerRecord

# The key of a request's scope, under "extensions", with its `PartWriter`. Other ASGI servers do not have it.
EXTENSION = "nearfar.part_writer"


class PartWriter(Protocol):
    """Writes parts of a response that has begun, with chunked encoding."""

    # Whether the client is connected and has read enough of the response.
    has_room: bool

    def write_part(self, body: bytes) -> None: ...


class StreamSink:
    """Implements `Sink`. It is ready from `open` on, while the connection has room."""

    def __init__(self, record: AnswerRecord) -> None:
        self._record = record
        self._writer: PartWriter | None = None
        # A time of `time.monotonic`.
        self.last_sent = 0.0

    def open(self, writer: PartWriter | None) -> None:
        """Call after the first block, which the stream itself sends. None: there is nothing to write to."""
        self._writer = writer

    @property
    def is_ready(self) -> bool:
        writer = self._writer
        return writer is not None and writer.has_room

    def send(self, part: EventBlock) -> None:
        assert self._writer is not None
        self.last_sent = self._record.sent(part.texts, part.ends, part.usage)
        self._writer.write_part(part.sent)
