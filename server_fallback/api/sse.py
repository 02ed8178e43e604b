"""EventStream: an answer as server-sent events, each ``data:`` and one line of JSON, ``data: [DONE]`` at the end.

The status is sent with the first event, so that what fails before it is an ordinary error; what fails later is an event with an ``error``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .drain import ClientGone, Drain
from .errors import api_error
from .exchange import Exchange
from .log import log_failure

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # nginx would keep events back until its buffer is full.
    "X-Accel-Buffering": "no",
}


class EventStream(Response):
    """``events`` are JSON texts; the generator is closed however the answer ends. A slow reader slows its own generator only."""

    def __init__(self, events: AsyncGenerator[bytes, None], exchange: Exchange, drain: Drain) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._exchange = exchange
        self._drain = drain
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        try:
            await self._drain.run(self._pump(send), receive, self._exchange.deadline)
            last = b"data: [DONE]\n\n"
        except ClientGone:
            raise
        except Exception as error:
            if not self._started:
                raise
            told = api_error(error)
            log_failure(self._exchange, error, told)
            last = b"data: " + told.body().model_dump_json().encode() + b"\n\n"
        await self._start(send)
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _pump(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for event in events:
                await self._start(send)
                await send({"type": "http.response.body", "body": b"data: " + event + b"\n\n", "more_body": True})
                # Neither a ready event nor a send into a buffer with room lets go of the loop, which others and this one's end need.
                await asyncio.sleep(0)

    async def _start(self, send: Send) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
