"""The process of an engine. It opens the engine that its server describes, and serves that server and those that
attach, until its connection to that server ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading

from nearfar.compiler.runtime.errors import NearfarError, Unavailable

from ..engine.encoder_engine import EncoderEngine
from ..engine.token_engine import TokenEngine
from ..garbage import collect_garbage_rarely
from ..option_types import HANG_SECONDS
from ..processes.connection import Background, Connection, Returned
from ..processes.heartbeat import Heart, beat_seconds
from .messages import Attach, Beat, Close, Listen, Open, OpenFailed
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
        self._owner = Session(self._on_message, lambda _: self._ended.set())
        self._attached: set[Session] = set()
        self._listener: asyncio.Server | None = None
        self._engine: TokenEngine | EncoderEngine | None = None
        self._masks: RemoteMasks | None = None
        self._hang_seconds = HANG_SECONDS
        self._background = Background()

    async def serve(self, connected: socket.socket) -> None:
        """Return when the owner's connection has ended, after `Close`, or when the engine has failed."""
        loop = asyncio.get_running_loop()
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

    def _on_message(self, session: Session, message: object) -> None:
        match message:
            case Attach():
                assert self._engine is not None
                assert self._masks is not None
                session.serve(self._engine, self._masks, self._hang_seconds)
            case Open() if session is self._owner:
                self._background.run(self._open(message))
            case Listen() if session is self._owner:
                self._background.run(self._listen(message))
            case Close() if session is self._owner:
                self._background.run(self._close(message))
            case _:
                raise TypeError(f"an engine does not know the message {message!r}")

    async def _open(self, message: Open) -> None:
        self._masks = RemoteMasks(message.max_mask_wait_seconds, asyncio.get_running_loop())
        try:
            engine = await asyncio.to_thread(message.recipe.open, self._masks)
        except Exception as error:
            failure = error if isinstance(error, NearfarError) else Unavailable(repr(error))
            self._owner.connection.send(OpenFailed(failure))
            return
        collect_garbage_rarely()
        self._engine = engine
        self._hang_seconds = message.hang_seconds
        self._owner.serve(engine, self._masks, self._hang_seconds)
        self._send_stats()
        Heart(beat_seconds(self._hang_seconds), self._send_beat)

    async def _listen(self, message: Listen) -> None:
        def attach() -> Connection:
            session = Session(self._on_message, self._attached.discard)
            self._attached.add(session)
            return session.connection

        failure = None
        try:
            self._listener = await asyncio.get_running_loop().create_unix_server(attach, message.path)
        except OSError as error:
            failure = Unavailable(f"{message.path}: {error}")
        self._owner.connection.send(Returned(message.call, None, failure))

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

    def _send_beat(self) -> None:
        assert self._engine is not None
        beat = Beat(self._engine.step_seconds)
        for session in self._sessions():
            session.connection.send(beat)
