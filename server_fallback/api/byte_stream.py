"""ByteStream: an answer of bytes, which are sent as they are made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .drain import ClientGone, Drain
from .errors import api_error
from .exchange import Exchange
from .log import log_failure


class Parts(Protocol):
    """Closing ``parts`` ends the work on them."""

    @property
    def media_type(self) -> str: ...

    @property
    def parts(self) -> AsyncGenerator[bytes, None]: ...


class ByteStream(Response):
    """The status is sent with the first part, so that a failure before it is an ordinary error. After a later one, the
    connection is closed before the end of the answer.
    """

    def __init__(self, begin: Callable[[], Awaitable[Parts]], exchange: Exchange, drain: Drain) -> None:
        super().__init__()
        self._begin, self._exchange, self._drain = begin, exchange, drain
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        try:
            await self._drain.run(self._send_all(send), receive, self._exchange.deadline)
        except ClientGone:
            raise
        except Exception as error:
            if not self._started:
                raise
            log_failure(self._exchange, error, api_error(error))

    async def _send_all(self, send: Send) -> None:
        answer, size = await self._begin(), 0
        async with aclosing(answer.parts) as parts:
            async for part in parts:
                if not self._started:
                    await self._start(send, answer.media_type)
                size += len(part)
                await send({"type": "http.response.body", "body": part, "more_body": True})
        if not self._started:
            await self._start(send, answer.media_type)
        self._exchange.log["bytes"] = size
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send, media_type: str) -> None:
        headers = [(b"content-type", media_type.encode("latin-1", "replace")), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._started = True
