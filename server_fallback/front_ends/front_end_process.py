"""The main process's view of a front end: starts its process, answers its calls, and restarts it after a crash."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

from nearfar.compiler.runtime.errors import NearfarError, Unavailable

from ..api.config import ApiConfig
from ..api.errors import ApiError
from ..api.limiter import Admission, Limiter
from ..api.metrics import SHARED_FOLDER
from ..engine_process.messages import Beat
from ..log_event import log_event
from ..processes.connection import Background, Connection, Returned, end, start
from ..processes.heartbeat import Watch
from .messages import Admit, Begin, Change, Publish, Published, Release, TakeAnswers, TakeBody

MAIN = "from nearfar.server_fallback.front_ends.front_end import main; main()"
RESTART_SECONDS = 0.5
# The time in which a process ends whose connection has ended.
ENDED_SECONDS = 5.0


class FrontEndProcess:
    """``on_change`` is called with the requested changes of models, and answers with `answer`. Belongs to the running
    event loop.
    """

    def __init__(
        self,
        listener: socket.socket,
        config: ApiConfig,
        limiter: Limiter,
        metrics_folder: str,
        latest: Callable[[], Publish],
        on_change: Callable[[FrontEndProcess, Change], None],
    ) -> None:
        self._listener, self._config, self._metrics_folder = listener, config, metrics_folder
        self._latest, self._on_change = latest, on_change
        self._requests = HeldRequests(limiter)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._published = -1
        # From the first beat on.
        self._watch: Watch | None = None
        self._has_published = asyncio.Condition()
        self._stopping = False
        self._ended = asyncio.Event()
        self._background = Background()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self, *, again: bool = False) -> None:
        connection = self._connection = Connection(self._on_message, self._on_end)
        environment = {**os.environ, SHARED_FOLDER: self._metrics_folder}
        self._process = await start(MAIN, connection, self._listener, environment=environment)
        self.send(Begin(self._config, again))
        self.send(self._latest())

    def send(self, message: object) -> None:
        if self._connection is not None:
            self._connection.send(message)

    async def published(self, version: int) -> None:
        """Wait until the front end uses these models, or later ones. A front end that crashes gets them when it starts
        again.
        """
        async with self._has_published:
            await self._has_published.wait_for(lambda: self._published >= version or self._connection is None)

    def stop(self, number: int) -> None:
        """Send a signal, after which the process is not started again."""
        self._stopping = True
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def ended(self) -> None:
        """Wait until the process has ended after `stop`."""
        await self._ended.wait()

    def answer(self, call: int, value: object, error: Exception | None) -> None:
        self.send(Returned(call, value, error))

    # --- messages ---

    def _on_message(self, message: object) -> None:
        match message:
            case Admit() | TakeAnswers() | TakeBody():
                try:
                    headers = dict(self._requests.take(message))
                except ApiError as error:
                    self.answer(message.call, None, error)
                else:
                    self.answer(message.call, headers, None)
            case Release():
                self._requests.release(message)
            case Change():
                self._on_change(self, message)
            case Beat():
                if self._watch is None:
                    self._watch = Watch(self._config.hang_seconds, self._on_hang)
                self._watch.beat()
            case Published(version):
                self._published = version
                self._background.run(self._notify())
            case _:
                raise TypeError(f"the main process does not know the message {message!r}")

    def _on_hang(self) -> None:
        """End the process, after which it is started again. This ends a stopped process too."""
        assert self._process is not None
        log_event("front_end_hung", logging.ERROR, front_end=self.pid, seconds=self._config.hang_seconds)
        self._process.kill()

    def _on_end(self) -> NearfarError:
        """The process has ended: as requested, or by a crash."""
        self._connection, self._published = None, -1
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        self._requests.release_all()
        self._background.run(self._after_end())
        return Unavailable("the front end has ended")

    async def _after_end(self) -> None:
        await self._notify()
        process = self._process
        assert process is not None
        status = await asyncio.to_thread(end, process, ENDED_SECONDS)
        if not self._stopping:
            log_event("front_end_ended", logging.ERROR, front_end=process.pid, status=status)
            await asyncio.sleep(RESTART_SECONDS)
        if self._stopping:
            self._ended.set()
            return
        await self.start(again=True)

    async def _notify(self) -> None:
        async with self._has_published:
            self._has_published.notify_all()


class HeldRequests:
    """The admitted requests of one front end, for the main process. ``limiter`` is that of all front ends."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._held: dict[int, tuple[Admission, ExitStack]] = {}

    def take(self, message: Admit | TakeAnswers | TakeBody) -> Mapping[str, str]:
        """The headers of the admission. Raises ApiError as `Limiter.admit` and the methods of `Admission` do."""
        if isinstance(message, Admit):
            stack = ExitStack()
            admission = stack.enter_context(self._limiter.admit(message.client, message.key))
            self._held[message.request] = admission, stack
            return admission.headers
        admission, _ = self._held[message.request]
        if isinstance(message, TakeAnswers):
            admission.answers(message.count, message.capacity, message.param)
        else:
            admission.body(message.size)
        return admission.headers

    def release(self, message: Release) -> None:
        """A request that was never admitted is not held."""
        _, stack = self._held.pop(message.request, (None, ExitStack()))
        stack.close()

    def release_all(self) -> None:
        """The front end has ended."""
        held, self._held = self._held, {}
        for _, stack in held.values():
            stack.close()
