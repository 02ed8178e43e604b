"""Child: a process that runs our code, and the connection to it, on systems that can pass sockets to processes."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from nearfar.compiler.runtime.errors import NearfarError, Unavailable

from .connection import Connection


def is_supported() -> bool:
    """Whether this system can pass a socket to a process."""
    return os.name == "posix"


class Child:
    """``main`` is Python code. Its arguments are the descriptors of a socket that is connected to this process, and of
    the sockets ``passed``. For ``receive`` and ``on_end`` see `Connection`. It can be started again after its end.
    """

    def __init__(
        self,
        main: str,
        receive: Callable[[Any], Any],
        on_end: Callable[[], NearfarError],
        passed: Sequence[socket.socket] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._main, self._passed, self._environment = main, passed, environment
        self._receive, self._on_end = receive, on_end
        self._process: subprocess.Popen[bytes] | None = None
        # None while it does not run.
        self.connection: Connection | None = None
        self._ended = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> Connection:
        ours, theirs = socket.socketpair()
        descriptors = [theirs.fileno(), *(each.fileno() for each in self._passed)]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", self._main, *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                # In a session of its own, a terminal's Ctrl-C reaches only the server.
                start_new_session=True,
                env=self._environment,
            )
        self._ended.clear()
        connection = self.connection = Connection(self._receive, self._lost)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=ours)
        except BaseException:
            self.kill()
            self._ended.set()
            raise
        return connection

    def send_signal(self, number: int) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def kill(self) -> None:
        """This ends a stopped process too."""
        if self._process is not None:
            self._process.kill()

    async def ended(self) -> None:
        """Wait until its connection has ended."""
        await self._ended.wait()

    async def end(self, seconds: float) -> int:
        """End a process that should have ended, after ``seconds``, and return its status."""
        assert self._process is not None
        return await asyncio.to_thread(end, self._process, seconds)

    def release(self) -> None:
        """Keep nothing of its owner after its end, when it is not started again."""
        self._receive, self._on_end = _nobody, _nobody

    def _lost(self) -> NearfarError:
        self.connection = None
        self._ended.set()
        return self._on_end()


def _nobody(*_: object) -> NearfarError:
    return Unavailable("the process has ended")


def end(process: subprocess.Popen[bytes], seconds: float) -> int:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(seconds)
    process.kill()
    return process.wait()
