"""Processes of the server, and connections to them: messages over a socket, as frames of a length and a pickle. Some
messages are calls, which return a result.

Pickle is safe here, because both sides run our own code with the same rights, and nobody else can reach the socket.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from nearfar.compiler.runtime.errors import NearfarError

HEADER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Returned:
    """The result of a call, or its error."""

    call: int
    value: object
    error: Exception | None


class Connection(asyncio.Protocol):
    """Belongs to one event loop, which calls ``on_message`` with each message that is not the result of a call, and
    ``on_end`` once no further message can arrive: it returns the error of the calls that still wait. ``numbers`` are
    those of calls.
    """

    def __init__(
        self,
        on_message: Callable[[object], None],
        on_end: Callable[[], NearfarError],
        numbers: Iterator[int] | None = None,
    ) -> None:
        self._on_message, self._on_end = on_message, on_end
        self._numbers = numbers or itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._failure: NearfarError | None = None
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._closed = asyncio.Event()

    def send(self, message: object) -> None:
        """Does nothing once the connection has ended."""
        if self._transport is None or self._transport.is_closing():
            return
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._transport.write(len(data).to_bytes(HEADER_BYTES, "little") + data)

    async def call(self, message: Callable[[int], object], abandon: Callable[[int], object] | None = None) -> Any:
        """The result of a message with the number of a call. A cancelled call sends the message ``abandon``. Raises the
        error of the other side, and that of ``on_end`` if it has ended.
        """
        if self._failure is not None:
            raise self._failure
        number = next(self._numbers)
        future = self._calls[number] = asyncio.get_running_loop().create_future()
        self.send(message(number))
        try:
            return await future
        finally:
            if self._calls.pop(number, None) is not None and abandon is not None:
                self.send(abandon(number))

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
            if isinstance(message, Returned):
                self._return(message)
            else:
                self._on_message(message)
        del received[:start]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._closed.set()
        self._failure = self._on_end()
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                future.set_exception(self._failure)

    def _return(self, message: Returned) -> None:
        # It may have been abandoned.
        future = self._calls.pop(message.call, None)
        if future is None or future.done():
            return
        if message.error is None:
            future.set_result(message.value)
        else:
            future.set_exception(message.error)


class Background:
    """Tasks that nobody awaits. The event loop itself does not keep them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def start(
    main: str, connection: Connection, *passed: socket.socket, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that runs the Python code ``main``. Its arguments are the descriptors of a socket that is
    connected to ``connection``, and of the sockets ``passed``.
    """
    ours, theirs = socket.socketpair()
    descriptors = [theirs.fileno(), *(each.fileno() for each in passed)]
    try:
        process = await asyncio.to_thread(
            # In a session of its own, a terminal's Ctrl-C reaches only the server.
            subprocess.Popen,
            [sys.executable, "-c", main, *map(str, descriptors)],
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            start_new_session=True,
            env=environment,
        )
    finally:
        theirs.close()
    await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=ours)
    return process


def end(process: subprocess.Popen[bytes], seconds: float) -> int:
    """End a process that should have ended, after ``seconds``, and return its status."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(seconds)
    process.kill()
    return process.wait()
