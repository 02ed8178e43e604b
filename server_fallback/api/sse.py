"""EventStream: an answer as server-sent events, each ``data:`` and one line of JSON, ``data: [DONE]`` at the end.

The status is sent with the first event, so that a failure before it is an ordinary error; a later failure is an event
with an ``error``. During silence, comments are sent, which readers skip. If a comment is sent before any event, the
status is sent with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from time import monotonic

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .drain import ClientGone, Drain
from .errors import api_error, is_panic
from .exchange import Exchange
from .log import log_failure
from .stream_sink import EXTENSION, StreamSink

# Proxies (nginx, cloud load balancers) close a connection that is silent for a minute. The interval is a quarter of
# that, so that a late comment is still in time.
KEEP_ALIVE_SECONDS = 15.0
# The time for which the events of one answer may block the event loop.
BUSY_SECONDS = 0.002
KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # Otherwise nginx holds events back until its buffer is full.
    "X-Accel-Buffering": "no",
}


class EventStream(Response):
    """``events`` are whole events, one or several at a time; the generator is always closed, however the answer ends. A
    slow reader slows only its own generator.

    ``before_start`` is called just before the headers are sent. ``sink`` sends events that ``events`` leaves out; it is
    opened once the first event has been sent.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        exchange: Exchange,
        drain: Drain,
        before_start: Callable[[], None],
        sink: StreamSink | None = None,
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._exchange = exchange
        self._drain = drain
        self._before_start = before_start
        self._sink = sink
        self._started = False
        # Events and comments are sent by two tasks; the headers must be out before either.
        self._starting = asyncio.Lock()
        self._last_sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._drain.run(self._pump(scope, send), receive, self._exchange.deadline)
            last = b"data: [DONE]\n\n"
        except ClientGone:
            raise
        except BaseException as error:
            if not self._started or not (isinstance(error, Exception) or is_panic(error)):
                raise
            reported = api_error(error)
            log_failure(self._exchange, error, reported)
            last = b"data: " + reported.body().model_dump_json().encode() + b"\n\n"
        await self._send(last, send, more=False)

    async def _pump(self, scope: Scope, send: Send) -> None:
        writer = scope.get("extensions", {}).get(EXTENSION)
        self._last_sent = monotonic()
        filling = asyncio.create_task(self._fill_silence(send))
        try:
            async with aclosing(self._events) as events:
                paused = self._last_sent
                async for event in events:
                    await self._send(event, send)
                    if self._sink is not None:
                        self._sink.open(writer)
                    if self._last_sent - paused > BUSY_SECONDS:
                        # Yield to the event loop: neither a ready event nor a send into a buffer with room does, but
                        # other tasks and a cancellation of this one need it.
                        await asyncio.sleep(0)
                        paused = self._last_sent
        finally:
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)

    async def _fill_silence(self, send: Send) -> None:
        while True:
            last_sent = self._last_sent if self._sink is None else max(self._last_sent, self._sink.last_sent)
            silent = monotonic() - last_sent
            if silent < KEEP_ALIVE_SECONDS:
                await asyncio.sleep(KEEP_ALIVE_SECONDS - silent)
            else:
                await self._send(KEEP_ALIVE, send)

    async def _send(self, body: bytes, send: Send, *, more: bool = True) -> None:
        if not self._started:
            async with self._starting:
                if not self._started:
                    self._before_start()
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    self._started = True
        await send({"type": "http.response.body", "body": body, "more_body": more})
        self._last_sent = monotonic()
