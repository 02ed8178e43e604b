"""The process of an engine. It opens the engine that its server describes, and serves that server and those that
attach, until its connection to that server ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from nearfar.compiler.runtime.errors import NearfarError, Unavailable

from ..engine.encoder_engine import EncoderEngine
from ..engine.token_engine import TokenEngine
from ..garbage import collect_garbage_rarely
from ..log_event import LOGGER
from ..option_types import HANG_SECONDS
from ..processes.connection import Connection
from .messages import Attach, Close, Listen, Logged, Open, Opened
from .remote_masks import RemoteMasks
from .session import Session

STATS_SECONDS = 0.1
# A hanging device must not keep the process alive after its server has ended.
STUCK_SECONDS = 10.0


def main() -> None:
    """The argument is the descriptor of a connected socket."""
    # A service manager sends these signals to all processes. The server closes this one after its last answers.
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    asyncio.run(EngineServer().serve(socket.socket(fileno=int(sys.argv[1]))))
    # Threads of a device may never end.
    sys.stdout.flush()
    os._exit(0)


class EngineServer:
    def __init__(self) -> None:
        self._ended = asyncio.Event()
        # The session of the server that started the process, and those that have attached.
        self._owner = Session(self._receive, lambda _: self._ended.set())
        self._attached: set[Session] = set()
        self._listener: asyncio.Server | None = None
        self._engine: TokenEngine | EncoderEngine | None = None
        self._masks: RemoteMasks | None = None
        self._hang_seconds = HANG_SECONDS

    async def serve(self, connected: socket.socket) -> None:
        """Return when the owner's connection has ended, after `Close`, or when the engine has failed."""
        loop = asyncio.get_running_loop()
        LOGGER.addHandler(SendingHandler(loop, self._owner.connection.send))
        LOGGER.propagate = False
        await loop.create_unix_connection(lambda: self._owner.connection, sock=connected)
        await self._ended.wait()
        timer = threading.Timer(STUCK_SECONDS, os._exit, (1,))
        timer.daemon = True
        timer.start()
        if self._listener is not None:
            self._listener.close()
        if self._engine is not None:
            await self._engine.close()
        for session in self._sessions():
            session.flush()
        await asyncio.gather(*(session.connection.close() for session in self._sessions()))

    def _sessions(self) -> list[Session]:
        return [self._owner, *self._attached]

    def _receive(self, session: Session, message: object) -> Opened | Coroutine[Any, Any, object]:
        match message:
            case Attach():
                assert self._engine is not None
                assert self._masks is not None
                return session.serve(self._engine, self._masks, self._hang_seconds)
            case Open() if session is self._owner:
                return self._open(message)
            case Listen(path) if session is self._owner:
                return self._listen(path)
            case Close() if session is self._owner:
                return self._close(message)
            case _:
                raise TypeError(f"an engine does not know the message {message!r}")

    async def _open(self, message: Open) -> Opened:
        self._masks = RemoteMasks(message.max_mask_wait_seconds, asyncio.get_running_loop())
        try:
            engine = await asyncio.to_thread(message.recipe.open, self._masks)
        except NearfarError:
            raise
        except Exception as error:
            raise Unavailable(repr(error)) from error
        collect_garbage_rarely()
        self._engine = engine
        self._hang_seconds = message.hang_seconds
        self._send_stats()
        return self._owner.serve(engine, self._masks, self._hang_seconds)

    async def _listen(self, path: str) -> None:
        def attach() -> Connection:
            session = Session(self._receive, self._attached.discard)
            self._attached.add(session)
            return session.connection

        try:
            self._listener = await asyncio.get_running_loop().create_unix_server(attach, path)
        except OSError as error:
            raise Unavailable(f"{path}: {error}") from error

    async def _close(self, message: Close) -> None:
        if self._engine is not None:
            await self._engine.close(message.drain_seconds, message.reason)
        self._ended.set()

    def _send_stats(self) -> None:
        assert self._engine is not None
        stats = self._engine.stats()
        for session in self._sessions():
            session.send_stats(stats)
        if stats.failure is not None:
            # The engine has given up its device. Another process may be able to use it.
            self._ended.set()
        asyncio.get_running_loop().call_later(STATS_SECONDS, self._send_stats)


class SendingHandler(logging.Handler):
    """Sends the events of this process to the server, in whose log they belong. They come from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[object], None]) -> None:
        super().__init__()
        self._loop, self._send = loop, send

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "fields", {})
        # The last ones may come when the loop has ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._send, Logged(record.getMessage(), record.levelno, fields))
