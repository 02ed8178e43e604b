"""A front end: a process that answers HTTP with the engines of the main process, until a signal ends it, or the end of
the main process.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI

from nearfar.compiler.runtime.errors import Unavailable

from ..api.app import create_app
from ..api.drain import SHUTTING_DOWN
from ..api.kept_answers import Asked
from ..api.keys import ApiKey
from ..api.limiter import Admitted
from ..api.log import configure_logs
from ..api.server import Server, loop_factory, prepare_process
from ..api.traces import open_traces
from ..log_event import log_event
from ..processes.connection import Connection
from .messages import (
    Admit,
    Beating,
    Begin,
    Configure,
    EndAnswer,
    Leave,
    Publish,
    Release,
    ReserveTokens,
    TakeAnswers,
    TakeBody,
    TakeTokens,
)
from .shared_answers import SharedAnswers, followed
from .shared_models import SharedModels
from .shared_responses import SharedResponses


def main() -> None:
    """The arguments are the descriptors of the link's socket and of a listening socket."""
    connected, listener = (socket.socket(fileno=int(argument)) for argument in sys.argv[1:3])
    # The main process forwards the hang-up of a terminal.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    configure_logs(sys.stderr)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(connected, listener))
    # Threads of the text layer may never end.
    sys.stdout.flush()
    os._exit(0)


async def serve(connected: socket.socket, listener: socket.socket) -> None:
    begin: asyncio.Future[Begin | None] = asyncio.get_running_loop().create_future()
    server: Server | None = None
    app: FastAPI | None = None
    has_ended, has_started = False, asyncio.Event()
    configured: Configure | None = None

    def configure(message: Configure) -> None:
        """Raises RequestError for a wrong certificate."""
        nonlocal configured
        configured = message
        if server is not None:
            server.configure(message.config)
        if message.started:
            has_started.set()

    def receive(message: object) -> object:
        match message:
            case Begin():
                begin.set_result(message)
                return None
            case Publish():
                return models.publish(message)
            case Leave(engine):
                return models.unused(engine)
            case Configure():
                configure(message)
                return None
            case Asked() | EndAnswer():
                # The main process asks only for what this process has claimed, so there is an app.
                assert app is not None
                kept = app.state.service.kept
                return followed(kept, message) if isinstance(message, Asked) else kept.end(message.name)
            case _:
                raise TypeError(f"a front end does not know the message {message!r}")

    def on_end() -> Unavailable:
        """The main process was killed, and its engines have ended with it."""
        nonlocal has_ended
        has_ended = True
        models.has_published.set()
        if server is not None:
            server.should_exit = True
        elif not begin.done():
            begin.set_result(None)
        return Unavailable(SHUTTING_DOWN)

    async def until_started() -> None:
        await has_started.wait()

    link = Connection(receive, on_end)
    models = SharedModels(link)
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=connected)
    message = await begin
    if message is None:
        return
    config = message.configure.config
    hang_seconds = config.hang_seconds
    main_process = os.getppid()
    link.watch(hang_seconds, lambda: end_main_process(main_process, hang_seconds))
    app = create_app(
        models,
        config,
        open_traces(os.environ),
        limits=SharedLimits(link),
        elsewhere=SharedAnswers(link),
        responses=SharedResponses(link),
    )
    prepare_process(app)
    if message.again:
        app.state.service.metrics.front_end_restarts.inc()
    link.send(Beating())
    link.beat(hang_seconds)
    # Connections that wait since the front end before this one ended need the models.
    await models.has_published.wait()
    if has_ended:
        return
    server = Server(app, until_started, ends_process=True)
    configure(configured or message.configure)
    await server.serve(sockets=[listener])
    await link.close()


def end_main_process(pid: int, hang_seconds: float) -> None:
    """End a main process that is silent, and with it the server: what started it can start it again. Until then, every
    front end would admit no request.
    """
    # The parent of a process whose parent has ended is another one.
    if os.getppid() == pid:
        log_event("main_process_hung", logging.ERROR, main_process=pid, seconds=hang_seconds)
        os.kill(pid, signal.SIGKILL)


class SharedLimits:
    """Implements `Limits`: the main process counts the requests of all front ends."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._numbers = itertools.count()
        self.running = 0
        self.body_bytes = 0

    def set(self, max_requests: int, max_body_bytes: int, client_share: float) -> None:
        """The main process has them."""

    @asynccontextmanager
    async def admit(self, client: str, key: ApiKey | None) -> AsyncGenerator[Admitted]:
        request = next(self._numbers)
        try:
            headers = await self._link.call(Admit(request, client, key))
            admission = SharedAdmission(self, self._link, request, key, headers)
            self.running += 1
            try:
                yield admission
            finally:
                self.running -= 1
                self.body_bytes -= admission.held_bytes
        finally:
            # The main process may have admitted a request that was cancelled before it knew.
            self._link.send(Release(request))


class SharedAdmission:
    """Implements `Admitted`."""

    def __init__(
        self, limits: SharedLimits, link: Connection, request: int, key: ApiKey | None, headers: Mapping[str, str]
    ) -> None:
        self._limits, self._link, self._request, self._key = limits, link, request, key
        self.headers = headers
        self.held_bytes = 0

    async def answers(self, count: int, capacity: int, param: str = "n") -> None:
        self.headers = await self._link.call(TakeAnswers(self._request, count, capacity, param))

    async def body(self, size: int) -> None:
        await self._link.call(TakeBody(self._request, size))
        self.held_bytes += size
        self._limits.body_bytes += size

    async def reserve(self, tokens: float) -> None:
        # Without the limit, no answer waits for the main process.
        if self._key is not None and self._key.tokens_per_minute is not None:
            self.headers = await self._link.call(ReserveTokens(self._request, tokens))

    def tokens(self, count: int) -> None:
        self._link.send(TakeTokens(self._request, count))
