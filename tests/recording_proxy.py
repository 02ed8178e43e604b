"""A TCP proxy before a server: it records all bytes of clients, pauses answers, and dies like a killed server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

# Each event of a stream begins with this.
EVENT = b"data: "


class RecordingProxy:
    """Call its methods from other threads than its own. ``received`` holds every byte of every client."""

    def __init__(self, upstream_port: int) -> None:
        self.received = bytearray()
        self.port = 0
        self._upstream_port = upstream_port
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._events: int | None = None
        self._passed = self._holding = 0
        self._released = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def hold(self, events: int) -> None:
        """Pass on this number of events from now, then pause until `release`."""
        self._events, self._passed = events, 0
        self._released.clear()

    @property
    def holds(self) -> bool:
        """Whether an answer is paused."""
        return self._holding > 0

    def release(self) -> None:
        self._events = None
        self._loop.call_soon_threadsafe(self._released.set)

    def die(self) -> None:
        """Stop listening and break every connection, like kill -9."""
        self._do(self._die())

    def come_back(self) -> None:
        self.release()
        if self._server is None:
            self._do(self._listen())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _die(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        upstream: asyncio.StreamWriter | None = None
        try:
            answers, upstream = await asyncio.open_connection("127.0.0.1", self._upstream_port)
            pumps = [
                asyncio.create_task(self._pass_requests(reader, upstream)),
                asyncio.create_task(self._pass_answers(answers, writer)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            # The server cannot be reached, or the proxy died.
            pass
        finally:
            self._connections.discard(task)
            for end in (writer, upstream):
                if end is not None:
                    end.transport.abort()

    async def _pass_requests(self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.received += data
            upstream.write(data)
            await upstream.drain()

    async def _pass_answers(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await answers.read(65536):
            for index, piece in enumerate(data.split(EVENT)):
                if index > 0:
                    if self._events is not None and self._passed >= self._events:
                        await writer.drain()
                        self._holding += 1
                        try:
                            await self._released.wait()
                        finally:
                            self._holding -= 1
                    self._passed += 1
                writer.write((EVENT if index > 0 else b"") + piece)
            await writer.drain()


@contextmanager
def recording_proxy(upstream_port: int) -> Iterator[RecordingProxy]:
    proxy = RecordingProxy(upstream_port)
    thread = threading.Thread(target=proxy._loop.run_forever)
    thread.start()
    try:
        proxy.come_back()
        yield proxy
    finally:
        proxy.die()
        proxy._loop.call_soon_threadsafe(proxy._loop.stop)
        thread.join()
        proxy._loop.close()
