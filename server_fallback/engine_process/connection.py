"""A connection between a server and the process of an engine: messages over a socket, as frames of a length and a
pickle.

Pickle is safe here, because both sides run our own code with the same rights, and nobody else can reach the socket.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import cast

HEADER_BYTES = 8


class Connection(asyncio.Protocol):
    """Belongs to one event loop, which calls ``on_message`` with each message, and ``on_end`` once no further message
    can arrive.
    """

    def __init__(self, on_message: Callable[[object], None], on_end: Callable[[], None]) -> None:
        self._on_message, self._on_end = on_message, on_end
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._closed = asyncio.Event()

    def send(self, message: object) -> None:
        """Does nothing once the connection has ended."""
        if self._transport is None or self._transport.is_closing():
            return
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._transport.write(len(data).to_bytes(HEADER_BYTES, "little") + data)

    async def close(self) -> None:
        """Send all pending data, and close."""
        if self._transport is not None:
            self._transport.close()
            await self._closed.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not instances of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        start = 0
        while len(received) - start >= HEADER_BYTES:
            end = start + HEADER_BYTES + int.from_bytes(received[start : start + HEADER_BYTES], "little")
            if len(received) < end:
                break
            with memoryview(received) as view:
                message = pickle.loads(view[start + HEADER_BYTES : end])
            start = end
            self._on_message(message)
        del received[:start]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._closed.set()
        self._on_end()
