"""Socket: a WebSocket whose messages are JSON. The caller is identified before any message is read, and errors are sent
before the socket closes.

A page of another site can open a WebSocket without a CORS check, so the origin is checked here, by the same rule as
CORS on the other routes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

from fastapi import WebSocket
from pydantic import BaseModel, ValidationError
from starlette.types import Message

from nearfar.compiler.runtime.errors import Unavailable

from ..schema.common import Request
from ..schema.verify import KEY_PROTOCOL, VerifyError
from .drain import SHUTTING_DOWN, ClientGone
from .errors import ApiError, api_error
from .exchange import exchange_of
from .json_body import parse_json
from .log import log_failure
from .route import authorize
from .service import Service
from .validation import validation_error

Said = TypeVar("Said", bound=Request)
Result = TypeVar("Result")
# Applications may use the close codes from here on; the HTTP status of the same error is added.
CLOSE_CODES = 4000


class Socket:
    """One connection. Call ``accept`` first, then ``next``, ``while_connected`` and ``send`` in turn, and ``end`` or
    ``fail`` last.
    """

    def __init__(self, socket: WebSocket, service: Service) -> None:
        self._socket, self._service, self.exchange = socket, service, exchange_of(socket)
        self.exchange.receive = self._disconnect
        # Messages that arrived while an answer was being generated.
        self._early: deque[Message] = deque()

    async def accept(self, protocol: str) -> None:
        """Raises ClientGone for a page whose origin is not allowed. The page is refused over HTTP, and the browser
        shows it no details.
        """
        if not self._may_ask():
            message = "the origin of this page is not allowed; start the server with --cors-origin for it"
            reported = ApiError(403, message, "origin_not_allowed")
            log_failure(self.exchange, reported, reported)
            await self._socket.send_denial_response(reported.response(self.exchange.write_error))
            raise ClientGone
        offered = self._socket.scope["subprotocols"]
        await self._socket.accept(protocol if protocol in offered else None)

    async def admit(self) -> None:
        """Identify the caller, and count the exchange against the limits until it is over. Raises ApiError (400, 401,
        429), Unavailable.
        """
        service, exchange = self._service, self.exchange
        exchange.set_deadline(self._socket.headers, service.config.request_timeout_seconds)
        exchange.key = authorize(service.config.keys, self._authorization())
        exchange.admission = await exchange.held.enter_async_context(
            service.limits.admit(exchange.client, exchange.key)
        )
        self.require_no_drain()

    def require_no_drain(self) -> None:
        """Raises Unavailable if the server is shutting down: a long exchange ends between two messages."""
        if self._service.drain.started:
            raise Unavailable(SHUTTING_DOWN)

    async def next(self, kind: type[Said], idle_seconds: float, *, hold: bool = False) -> Said:
        """The next message. ``hold``: its bytes count as held in memory until the exchange is over.

        Raises ApiError: 408 if no message arrives in time, 400 if it is not the expected message, 429 if too many bytes
        are held; ClientGone.
        """
        seconds = min(idle_seconds, max(0.0, self.exchange.deadline - time.monotonic()))
        try:
            async with asyncio.timeout(seconds):
                message = self._early.popleft() if self._early else await self._receive()
        except TimeoutError:
            raise ApiError(408, f"no message arrived within {seconds:.0f} s", "message_timeout") from None
        text = message.get("text")
        if text is None:
            raise ApiError(400, "send messages as JSON text, not as bytes", "invalid_json")
        body = text.encode("utf-8", "surrogatepass")
        if hold and self.exchange.admission is not None:
            await self.exchange.admission.body(len(body))
        value = await self._service.parsed(parse_json, body, self.exchange.client)
        try:
            return kind.model_validate(value)
        except ValidationError as error:
            raise validation_error(
                [{**each, "loc": ("body", *each["loc"])} for each in error.errors()], value
            ) from None

    async def while_connected(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of ``work``, which ends early if the client disconnects, the deadline passes or the server shuts
        down. Raises the errors of `Drain.run`.
        """
        return await self._service.drain.run(work, self._disconnect, self.exchange.deadline)

    async def send(self, message: BaseModel) -> None:
        try:
            await self._socket.send_text(message.model_dump_json())
        except (OSError, RuntimeError):
            # The client closed the socket while this message was being prepared.
            raise ClientGone from None

    async def end(self) -> None:
        await self._socket.close(1000)

    async def fail(self, error: BaseException) -> None:
        """Send the error that ends the exchange, if the client is still connected."""
        reported = api_error(error)
        log_failure(self.exchange, error, reported)
        try:
            await self.send(VerifyError(error=reported.body().error))
            await self._socket.close(CLOSE_CODES + reported.status)
        except (ClientGone, RuntimeError):
            return

    async def _receive(self) -> Message:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise ClientGone
        return message

    async def _disconnect(self) -> Message:
        """The next event in the form that an HTTP connection reports it. A message that arrives early is queued for its
        turn.
        """
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            return {"type": "http.disconnect"}
        self._early.append(message)
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    def _may_ask(self) -> bool:
        """Only browsers send an origin, and pages cannot forge it."""
        headers, allowed = self._socket.headers, self._service.config.cors_origins
        origin = headers.get("origin")
        return origin is None or "*" in allowed or origin in allowed or urlsplit(origin).netloc == headers.get("host")

    def _authorization(self) -> str:
        """The value of the Authorization header. Pages cannot set the header, so they send the key as one of the
        protocols that they offer.
        """
        offered = [name for name in self._socket.scope["subprotocols"] if name.startswith(KEY_PROTOCOL)]
        if not offered:
            return self._socket.headers.get("authorization", "")
        coded = offered[0].removeprefix(KEY_PROTOCOL)
        try:
            key = base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode()
        except (binascii.Error, UnicodeDecodeError):
            return ""
        return f"Bearer {key}"
