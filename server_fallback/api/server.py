"""The server: the app on a socket until a signal. The first SIGTERM or SIGINT lets requests finish; a second one does
not wait. SIGHUP reads the configuration again, or is like SIGTERM for a server without a file to read.

While requests finish, /health/ready answers 503 and new requests are rejected; then the process exits with 0. If a
thread hangs, the process exits anyway, with 1 and a log line that shows the stack position of each thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import stat
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from nearfar.compiler.runtime.errors import RequestError, reason_of

from ..garbage import collect_garbage_rarely, limit_arenas
from ..log_event import log_event
from ..processes.connection import Background
from .addresses import Addresses
from .config import ApiConfig
from .connection import connection_factory, socket_factory
from .connections import RESERVED_FILES, Connections
from .log import set_level
from .service import Service
from .tls import reload_tls, tls_context

BACKLOG = 2048
# The time after the drain to send the last bytes of the last answers.
CLOSE_SECONDS = 5
# The time after the drain for everything else to end, such as threads of models.
STUCK_SECONDS = 20
KEEP_ALIVE_SECONDS = 65


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a listening socket; port 0 selects a free port. Raises RequestError, so call this before any slow work.

    ``shared``: other sockets of this user may listen on the same port, and the system divides the connections.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Otherwise the port of a server that has just stopped stays blocked for a minute.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise RequestError(
            f"--host {host} --port {port}: {reason_of(error)}; choose others, or port 0 for a free one"
        ) from error
    return listener


def bind_unix(path: Path) -> socket.socket:
    """Return a socket that listens at a path, which only this user may connect to. Raises RequestError."""
    if not hasattr(socket, "AF_UNIX"):
        raise RequestError(f"--socket {path}: this system has no Unix sockets; leave it out")
    listener = socket.socket(socket.AF_UNIX)
    try:
        # That of a server that was killed. Another file stays, and is an error.
        if stat.S_ISSOCK(path.stat(follow_symlinks=False).st_mode) and not is_served(path):
            path.unlink()
    except FileNotFoundError:
        pass
    try:
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
    except (OSError, ValueError) as error:
        listener.close()
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        raise RequestError(f"--socket {path}: {reason}; choose another path") from error
    return listener


def is_served(path: Path) -> bool:
    """Whether a server listens at a Unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def run_server(
    app: FastAPI,
    listener: socket.socket,
    started: Callable[[], Awaitable[None]] | None = None,
    reload: Callable[[Server], Coroutine[Any, Any, None]] | None = None,
    also: Sequence[socket.socket] = (),
) -> None:
    """Serve until a signal, on the listener and ``also`` on others. ``started`` runs beside the server once they
    answer; an error that it raises ends the server and is raised again. ``reload`` runs on SIGHUP; None: the signal
    ends the server. Raises RequestError for a wrong certificate.
    """
    prepare_process(app)
    server = Server(app, started, ends_process=True)
    _handle_hangup(server, reload)
    server.run(sockets=[listener, *also])
    if server.failure is not None:
        raise server.failure


def prepare_process(app: FastAPI | None = None) -> None:
    """Settings of a process that serves, before it opens models: open files, garbage collection, arenas of memory."""
    _allow_many_files()
    if app is not None:
        _make_routes(app)
    collect_garbage_rarely()
    limit_arenas()


def _make_routes(app: FastAPI) -> None:
    """FastAPI makes the models of its routes when it first looks for one: 13,000 objects, which stay."""
    for route in app.routes:
        route.matches({"type": "http", "method": "GET", "path": "/", "root_path": "", "headers": []})


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's event loop factory in the form that uvicorn accepts, or asyncio's if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


class Server(uvicorn.Server):
    """``failure`` is the error that ``begun`` raised. ``ends_process``: the process ends with the server, by force if a
    thread hangs.
    """

    def __init__(
        self, app: FastAPI, begun: Callable[[], Awaitable[None]] | None = None, *, ends_process: bool = False
    ) -> None:
        service: Service = app.state.service
        self._tls = tls_context(service.config)
        self.open_connections = Connections(
            *_most_connections(service.config), Addresses(service.config.trusted_proxies)
        )
        config = uvicorn.Config(
            app,
            # The annotations require classes, but uvicorn only calls them.
            http=connection_factory(  # type: ignore[arg-type]
                self.open_connections, service.config.header_timeout_seconds, service.config.write_timeout_seconds
            ),
            ws=socket_factory(self.open_connections),  # type: ignore[arg-type]
            # Messages are small, and compressing them would cost each connection some memory.
            ws_per_message_deflate=False,
            ws_max_size=service.config.max_body_bytes,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
        super().__init__(config)
        self.failure: BaseException | None = None
        self._service = service
        self._begun = begun
        self._ends_process = ends_process
        self._loop: asyncio.AbstractEventLoop | None = None
        self._background = Background()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.config.ssl = self._tls
        await super().startup(sockets)
        self._background.run(self._begin(self._begun))

    def configure(self, config: ApiConfig) -> None:
        """Serve with other keys, limits, certificates and levels of the log from now on. Raises RequestError for
        certificates that cannot be read, and then changes nothing.
        """
        if self._tls is not None:
            reload_tls(self._tls, config)
        self._service.configure(config)
        self.open_connections.set(*_most_connections(config))
        self.config.ws_max_size = config.max_body_bytes
        set_level(config.log_level)

    def run_soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it beside the server, from a handler of a signal. Before it serves, this does nothing."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: self._background.run(work()))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Unlike uvicorn's method, this one keeps listening while requests finish, and does not raise the signal again
        at the end.
        """
        if self._loop is None or not self.started:
            self.should_exit = True
            return
        if self._service.drain.started:
            self._service.drain.hurry()
            self._end_process_after(STUCK_SECONDS)
            return
        self._service.drain.started = True
        self._end_process_after(self._service.config.drain_seconds + STUCK_SECONDS)
        log_event("draining", signal=signal.Signals(sig).name, seconds=self._service.config.drain_seconds)
        self.run_soon(self._drain)

    def _end_process_after(self, seconds: float) -> None:
        """A hanging thread would keep Python from exiting, and a hang in the event loop would keep the server from
        draining.
        """
        if self._ends_process:
            end_process_after(seconds)

    async def _begin(self, begun: Callable[[], Awaitable[None]] | None) -> None:
        try:
            if begun is not None:
                await begun()
            self._service.started = True
        except BaseException as error:
            self.failure = error
            self.should_exit = True

    async def _drain(self) -> None:
        await self._service.drain.finish(self._service.config.drain_seconds)
        self.should_exit = True


def _handle_hangup(server: Server, reload: Callable[[Server], Coroutine[Any, Any, None]] | None) -> None:
    """SIGHUP, which is also sent when the terminal closes. Under nohup, it does not end the server."""
    if not hasattr(signal, "SIGHUP") or threading.current_thread() is not threading.main_thread():
        return
    if reload is not None:
        signal.signal(signal.SIGHUP, lambda *_: server.run_soon(lambda: reload(server)))
    elif signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, server.handle_exit)


def end_process_after(seconds: float) -> None:
    timer = threading.Timer(seconds, _end_process)
    timer.daemon = True
    timer.start()


def _end_process() -> None:
    frames = sys._current_frames().values()
    where = [
        f"{last.filename}:{last.lineno} {last.name}"
        for frame in frames
        if (last := traceback.extract_stack(frame, limit=1)[0])
    ]
    log_event("stuck", logging.ERROR, threads=where)
    # Exit without waiting for anything that still runs.
    os._exit(1)


def _most_connections(config: ApiConfig) -> tuple[int, int]:
    """Of all clients, and of one."""
    most = config.max_connections
    try:
        import resource
    except ImportError:
        pass
    else:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            most = max(1, min(most, soft - RESERVED_FILES))
    return most, max(1, int(most * config.client_share))


def _allow_many_files() -> None:
    """Each connection is an open file, and the soft limit is 1,024 on many machines."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            log_event("file_limit", limit=soft)
