"""ByteStream: an answer of bytes, which are sent as they are made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .drain import ClientGone, Drain
from .errors import WriteError, api_error, is_panic
from .exchange import Exchange
from .log import log_failure


@dataclass(frozen=True, slots=True)
class Parts:
    """Closing ``parts`` ends the work on them."""

    parts: AsyncGenerator[bytes, None]
    media_type: str


class ByteStream(Response):
    """The status is sent with the first part, so that a failure before it is an ordinary error. After a later one,
    ``failed`` makes the last part; without it, the connection is closed before the end of the answer. Parts are created
    only as fast as the client reads them.
    """

    def __init__(
        self,
        begin: Callable[[], Awaitable[Parts]],
        exchange: Exchange,
        drain: Drain,
        failed: WriteError | None = None,
    ) -> None:
        super().__init__()
        self._begin, self._exchange, self._drain, self._failed = begin, exchange, drain, failed
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        last: bytes | None = b""
        try:
            await self._drain.run(self._send_parts(send), receive, self._exchange.deadline)
        except ClientGone:
            raise
        except BaseException as error:
            if not self._started or not (isinstance(error, Exception) or is_panic(error)):
                raise
            reported = api_error(error)
            log_failure(self._exchange, error, reported)
            last = None if self._failed is None else self._failed(reported)
        if last is not None:
            await send({"type": "http.response.body", "body": last})

    async def _send_parts(self, send: Send) -> None:
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

    async def _start(self, send: Send, media_type: str) -> None:
        headers = [(b"content-type", media_type.encode("latin-1", "replace")), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._started = True
