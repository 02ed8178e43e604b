"""Connection: uvicorn's HTTP protocol with the limits that it lacks, so that no inactive connection holds resources for
long.

A client is disconnected if it does not complete its header in time, sends a header that is too large, reads nothing of
its answer for too long, or has too many connections. A WebSocket begins as such a connection and stays counted until it
closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode

from .connections import Connections
from .sse import EXTENSION

MAX_HEADER_BYTES = 64 << 10
# Frames of a WebSocket between two messages that the app takes: a message may come in fragments, with pings and pongs
# between them. A frame of 7 bytes takes as long to read as one of some kilobytes.
MAX_FRAMES = 1024
# These bytes are read before their frames are counted.
COUNTED_BYTES = 4 << 10


class Connection(HttpToolsProtocol):
    """Implements `PartWriter` for the response that it sends.

    ``header_timeout_seconds`` counts while no request is under way, ``write_timeout_seconds`` while the answer's
    buffer is full.
    """

    def __init__(
        self,
        *arguments: Any,
        open_connections: Connections,
        header_timeout_seconds: float,
        write_timeout_seconds: float,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.parser = RequestParser(self)
        self._open_connections = open_connections
        self._header_timeout_seconds = header_timeout_seconds
        self._write_timeout_seconds = write_timeout_seconds
        self._in_header = False
        self._header_bytes = 0
        # A client may send further requests while an answer is being written.
        self._unanswered: set[RequestResponseCycle] = set()
        self.has_room = True
        self._silent: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._open_connections.admit(transport, self.client[0] if self.client else "", self._is_idle):
            self._await_header()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_room = False
        for timer in (self._silent, self._stuck):
            if timer is not None:
                timer.cancel()
        self._open_connections.release(self.transport)
        super().connection_lost(exc)
        # uvicorn ends only the last one.
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        # A request refers to its connection, which would be kept with its TLS buffer of 256 KiB until the garbage
        # collector runs. A running answer ends without them.
        self._unanswered.clear()
        self.pipeline.clear()
        self.cycle = self.scope = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_header:
            return
        self._header_bytes += len(data)
        if self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self.send_400_response(f"The header is larger than {MAX_HEADER_BYTES} bytes.")
            else:
                # The header belongs to the next request, which arrived while an answer is being sent.
                self.transport.abort()

    def on_message_begin(self) -> None:
        self._in_header = True
        self._header_bytes = 0
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: self}  # type: ignore[dict-item]

    @property
    def declines_upgrade(self) -> bool:
        """Whether the request whose header was read offers another protocol that is not WebSocket."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT" and not self._should_upgrade()

    def head_without_upgrade(self) -> bytes:
        """The header of that request without the offer."""
        line = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        fields = [b"%b: %b" % field for field in self.headers if field[0] != b"upgrade"]
        return b"\r\n".join((line, *fields, b"", b""))

    def on_headers_complete(self) -> None:
        if self.declines_upgrade:
            # The parser leaves out the body of such a request, and reads all of it again.
            return
        self._in_header = False
        if self._silent is not None:
            self._silent.cancel()
            self._silent = None
        super().on_headers_complete()
        if self.cycle is not None:
            self._unanswered.add(self.cycle)

    def on_message_complete(self) -> None:
        if not self.declines_upgrade:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._unanswered = {each for each in self._unanswered if not each.response_complete}
        super().on_response_complete()
        if self.transport.is_closing():
            self._cut_off_later()
        elif self.cycle.response_complete:
            self._await_header()

    def handle_websocket_upgrade(self) -> None:
        self._open_connections.keep(self.transport)
        super().handle_websocket_upgrade()
        # The transport has another protocol from now on. See `connection_lost`.
        self.scope = self.parser = None  # type: ignore[assignment]

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._cut_off_later()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.has_room = False
        self._cut_off_later()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.has_room = True
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def write_part(self, body: bytes) -> None:
        # As uvicorn writes each "http.response.body". An empty part would end the response.
        if body and not self.transport.is_closing():
            self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _await_header(self) -> None:
        self._silent = self.loop.call_later(self._header_timeout_seconds, self.transport.abort)

    def _cut_off_later(self) -> None:
        """Without this timer, a closing transport would wait forever for a client that does not read."""
        if self._stuck is None:
            self._stuck = self.loop.call_later(self._write_timeout_seconds, self.transport.abort)


class RequestParser(HttpRequestParser):
    """A parser that ignores offers of protocols other than WebSocket, as RFC 9110 (7.8) permits: Java's client offers
    HTTP/2 with each request, and llhttp leaves out the body of a request with an offer.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        # As uvicorn sets it: a request may follow one that closes the connection.
        self.set_dangerous_leniencies(lenient_data_after_close=True)
        self._connection = connection

    def feed_data(self, data: Any) -> None:
        rest = memoryview(data)
        while True:
            try:
                return super().feed_data(rest)
            except HttpParserUpgrade as upgrade:
                if not self._connection.declines_upgrade:
                    raise
                [length] = upgrade.args
                rest = rest[length:]
                super().feed_data(self._connection.head_without_upgrade())


class SocketConnection(WebSocketsSansIOProtocol):
    """A connection that became a WebSocket. It ends when its client sends too many frames."""

    def __init__(self, *arguments: Any, open_connections: Connections, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._open_connections = open_connections
        self._frames = 0

    def data_received(self, data: bytes) -> None:
        for at in range(0, len(data), COUNTED_BYTES):
            if self.transport.is_closing():
                return
            super().data_received(data[at : at + COUNTED_BYTES])

    def handle_events(self) -> None:
        self._frames += len(self.conn.events)
        if self._frames > MAX_FRAMES:
            self.conn.fail(CloseCode.POLICY_VIOLATION, f"more than {MAX_FRAMES} frames before a message was read")
            self.handle_parser_exception()
        else:
            super().handle_events()

    async def receive(self) -> Any:
        message = await super().receive()
        self._frames = 0
        return message

    def connection_lost(self, exc: Exception | None) -> None:
        self._open_connections.release(self.transport)
        super().connection_lost(exc)


def connection_factory(
    open_connections: Connections, header_timeout_seconds: float, write_timeout_seconds: float
) -> Callable[..., Connection]:
    """The function that uvicorn calls for each connection."""
    return partial(
        Connection,
        open_connections=open_connections,
        header_timeout_seconds=header_timeout_seconds,
        write_timeout_seconds=write_timeout_seconds,
    )


def socket_factory(open_connections: Connections) -> Callable[..., SocketConnection]:
    """The function that uvicorn calls for each connection that becomes a WebSocket."""
    return partial(SocketConnection, open_connections=open_connections)
