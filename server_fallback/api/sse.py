"""EventStream: an answer as the events of a stream, in the form of its API (`EventForm`).

The status is sent with the first event that has content, so that a failure before it, such as a full queue, is an
ordinary error; a later failure is an event. During silence, comments are sent, which readers skip. If a comment is sent
before any event, the status is sent with it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from time import monotonic
from typing import Generic, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..executors.event_template import MARK
from ..schema.common import Usage
from ..text.output import NO_ENDS, Answering, ChunkT, Encode
from .answer_record import AnswerRecord, contents_of
from .drain import ClientGone, Drain
from .errors import api_error, is_panic
from .exchange import Exchange
from .log import log_failure

# The key of a request's scope, under "extensions", with its `PartWriter`. Other ASGI servers do not have it.
EXTENSION = "nearfar.part_writer"
# Proxies (nginx, cloud load balancers) close a connection that is silent for a minute. The interval is a quarter of
# that, so that a late comment is still in time.
KEEP_ALIVE_SECONDS = 15.0
# The time for which the events of one answer may block the event loop.
BUSY_SECONDS = 0.002
HEADERS = {
    "Cache-Control": "no-cache",
    # Otherwise nginx holds events back until its buffer is full.
    "X-Accel-Buffering": "no",
}


def data_event(json: bytes) -> bytes:
    """A server-sent event without a name."""
    return b"data: " + json + b"\n\n"


@dataclass(frozen=True, slots=True)
class EventForm:
    """What a stream consists of besides the events of chunks: the last event after a complete answer, the one that
    reports an error, from its JSON, and what readers skip, empty if they skip nothing. By default, it is that of
    OpenAI's API.
    """

    content_type: str = "text/event-stream; charset=utf-8"
    done: bytes = data_event(b"[DONE]")
    error: Callable[[bytes], bytes] = data_event
    comment: bytes = b": keep-alive\n\n"


OPENAI_EVENTS = EventForm()


class PartWriter(Protocol):
    """Writes parts of a response that has begun, with chunked encoding."""

    # Whether the client is connected and has read enough of the response.
    has_room: bool

    def write_part(self, body: bytes) -> None: ...


class EventStream(Response, Generic[ChunkT]):
    """Implements `Output`. ``answering`` sends the answer to it, and is always cancelled when the answer ends early. A
    slow reader slows only its own answer.

    Once the response has begun, events are written to the connection at once. Until then, and while the client does not
    read, they wait for `room`. If events are ``alike``, a chunk with only a text is not created: its event is that of
    the choice's first such chunk, with the text replaced. ``before_start`` is called just before the headers are sent.
    With ``at_once``, the status is sent with the first event of any kind. ``is_complete``: no error ended it.
    """

    def __init__(
        self,
        answering: Answering[ChunkT],
        encode: Encode[ChunkT],
        record: AnswerRecord,
        exchange: Exchange,
        drain: Drain,
        before_start: Callable[[], None],
        form: EventForm = OPENAI_EVENTS,
        *,
        alike: bool = True,
        at_once: bool = False,
    ) -> None:
        super().__init__(headers={"Content-Type": form.content_type, **HEADERS})
        del self.headers["content-length"]
        self._answering: Answering[ChunkT] = answering
        self._encode: Encode[ChunkT] = encode
        self.encode: Encode[ChunkT] | None = encode if alike else None
        self._record, self._exchange, self._drain = record, exchange, drain
        self._before_start, self._form = before_start, form
        self._scope: Scope
        self._send: Send
        self._writer: PartWriter | None = None
        self._started = False
        # Events that wait for room, or for the first one with content.
        self._waiting, self._has_content = list[bytes](), at_once
        self.is_complete = False
        # The bytes before and after the text of each choice, and the choice.
        self._around: dict[int, tuple[bytes, bytes, frozenset[int]]] = {}
        # Events and comments are sent by several tasks. What is sent meanwhile must not overtake them.
        self._sending = asyncio.Lock()
        self._last_sent = self._paused = 0.0

    # --- the output ---

    @property
    def has_room(self) -> bool:
        writer = self._writer
        return writer is not None and writer.has_room and not self._waiting and not self._sending.locked()

    async def room(self) -> None:
        if self._waiting and self._has_content:
            await self._send_part(b"")
        if monotonic() - self._paused > BUSY_SECONDS:
            # Yield to the event loop: neither a ready event nor a send into a buffer with room does, but other tasks
            # and a cancellation of this one need it.
            await asyncio.sleep(0)
            self._paused = monotonic()

    def chunk(self, chunk: ChunkT) -> None:
        self._record.routed(chunk.route)
        self.block(self._encode(chunk) or b"", *contents_of(chunk), chunk.usage)

    def text(self, index: int, text: str, text_chunk: Callable[[int, str], ChunkT]) -> None:
        if self.encode is None:
            self.chunk(text_chunk(index, text))
            return
        around = self._around.get(index)
        if around is None:
            event = self.encode(text_chunk(index, MARK))
            assert event is not None
            before, _, after = event.partition(json.dumps(MARK).encode())
            around = self._around[index] = before, after, frozenset((index,))
        before, after, texts = around
        self.block(before + encode_basestring(text).encode() + after, texts)

    def block(
        self, sent: bytes, texts: Collection[int], ends: Mapping[int, str] = NO_ENDS, usage: Usage | None = None
    ) -> None:
        now = self._record.sent(texts, ends, usage)
        if self.has_room:
            assert self._writer is not None
            self._writer.write_part(sent)
            self._last_sent = now
        else:
            self._waiting.append(sent)
            self._has_content = self._has_content or bool(texts or ends)

    # --- the response ---

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._send = scope, send
        try:
            await self._drain.run(self._answer(), receive, self._exchange.deadline)
            last = self._form.done
            self.is_complete = True
        except ClientGone:
            raise
        except BaseException as error:
            if not self._started or not (isinstance(error, Exception) or is_panic(error)):
                raise
            reported = api_error(error)
            log_failure(self._exchange, error, reported)
            last = self._form.error(self._exchange.write_error(reported))
        await self._send_part(last, more=False)

    async def _answer(self) -> None:
        self._last_sent = self._paused = monotonic()
        filling = asyncio.create_task(self._fill_silence())
        try:
            with self._record:
                await self._answering(self)
        finally:
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)

    async def _fill_silence(self) -> None:
        while self._form.comment:
            silent = monotonic() - self._last_sent
            if silent < KEEP_ALIVE_SECONDS:
                await asyncio.sleep(KEEP_ALIVE_SECONDS - silent)
            else:
                await self._send_part(self._form.comment)

    async def _send_part(self, body: bytes, *, more: bool = True) -> None:
        """Send the events that wait for room, and after them ``body``."""
        async with self._sending:
            if not self._started:
                self._before_start()
                await self._send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                self._started = True
            if self._has_content:
                body = b"".join([*self._waiting, body])
                self._waiting = []
            if body or not more:
                await self._send({"type": "http.response.body", "body": body, "more_body": more})
                self._last_sent = monotonic()
            self._writer = self._scope.get("extensions", {}).get(EXTENSION)
