"""Supervise another program's server: start it, wait until it is ready, pass on its log, restart it after a crash, and
stop it with all its child processes.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

import httpx

from nearfar.compiler.runtime.errors import DeviceError

from ..log_event import log_output
from ..option_types import HANG_SECONDS
from ..processes.heartbeat import Watch
from ..processes.supervisor import Restarts, supervise

RESTARTS = Restarts(first_seconds=1.0, most=5)
POLL_SECONDS = 0.25
LAST_LINES = 20
MAX_LINE_BYTES = 65_536
LOG_END_SECONDS = 2.0
# Health checks within the time after which a silent server has crashed.
CHECKS = 12
# How long a server that still runs after a failure may take to end.
FAILED_STOP_SECONDS = 2.0


class Companions(Protocol):
    """Other machines that the server needs."""

    @property
    def missing(self) -> list[int]:
        """The machines that are not connected."""

    async def start(self) -> None:
        """Return when all are connected and have received the command to start."""

    async def failed(self) -> str:
        """Wait until one has failed, and return the reason."""

    async def stop(self) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ServerProgram:
    """``command`` serves ``health_url`` once it is ready, which may take up to ``start_seconds``. It starts when its
    ``companions`` are connected. If one of them fails, this counts as a crash, and so does a ``health_url`` that is not
    a success for ``hang_seconds``.
    """

    name: str
    command: Sequence[str]
    health_url: str
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    start_seconds: float = 1800.0
    stop_seconds: float = 20.0
    restarts: Restarts = RESTARTS
    hang_seconds: float = HANG_SECONDS
    companions: Companions | None = field(default=None, repr=False)


class SupervisedServer:
    """Needs a running event loop."""

    def __init__(self, program: ServerProgram) -> None:
        self._program = program
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._process: asyncio.subprocess.Process | None = None
        self._log: asyncio.Task[None] | None = None
        self._supervision: asyncio.Task[None] | None = None
        self._failing: asyncio.Task[str] | None = None
        self._hung = asyncio.Event()
        # While it is ready, or has been and is silent now.
        self._watch: Watch | None = None
        self._detail = "not started"

    @property
    def ready(self) -> bool:
        """Whether it answers."""
        return self._watch is not None and self._watch.is_ready

    @property
    def detail(self) -> str:
        """A description of its state."""
        if self._watch is not None and not self._watch.is_ready:
            return f"has not responded for {self._watch.silent_seconds:.0f} s"
        return self._detail

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def open(self) -> None:
        """Return when it answers. Raises DeviceError, with the end of its log, if it exits first or takes too long; it
        is then stopped.
        """
        program = self._program
        try:
            async with asyncio.timeout(program.start_seconds if program.companions else None) as limit:
                await self._gather()
                # The other steps have their own time limit.
                limit.reschedule(None)
                await self._launch()
        except TimeoutError as error:
            await self._close()
            raise DeviceError(f"{program.name}: {self.detail} for {program.start_seconds:.0f} seconds") from error
        except BaseException:
            await self._close()
            raise
        self._supervision = asyncio.create_task(supervise(self, program.restarts))

    async def stop(self) -> None:
        """Request its end, and kill it after a while."""
        if self._supervision is not None:
            self._supervision.cancel()
            # Unlike `suppress`, this does not hide a cancellation of the caller.
            await asyncio.gather(self._supervision, return_exceptions=True)
        await self._close()
        self._detail = "stopped"

    async def _close(self) -> None:
        await self._end()
        if self._program.companions is not None:
            await self._program.companions.close()

    async def _gather(self) -> None:
        """Wait for the companions, and start them."""
        companions = self._program.companions
        if companions is None:
            return
        if missing := companions.missing:
            self._detail = f"{self._detail}, and waiting for the nodes {', '.join(map(str, missing))}".removeprefix(
                "not started, and "
            )
            self._say(self.detail)
        await companions.start()
        self._failing = asyncio.create_task(companions.failed())

    async def _launch(self) -> None:
        program, self._detail = self._program, "starting"
        # A pipe of our own: with asyncio's, `wait` would last until every child of a crashed server has closed it.
        read_end, write_end = os.pipe()
        self._log = asyncio.create_task(self._pass_on(read_end))
        try:
            # A separate session, so that its child processes are ended with it, and Ctrl-C reaches it only through this
            # process.
            self._process = await asyncio.create_subprocess_exec(
                *ended_with_us(program.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                env={**os.environ, **program.environment},
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        give_up = monotonic() + program.start_seconds
        async with httpx.AsyncClient(timeout=POLL_SECONDS * 8, trust_env=False) as client:
            while not await answers(client, program.health_url):
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        status = await self._process.wait()
                    await self._end()
                    raise DeviceError(
                        f"{program.name} ended with status {status} before it was ready; its last "
                        f"lines:\n{self._last()}"
                    )
                if self._failing is not None and self._failing.done():
                    raise DeviceError(f"{program.name} was not ready before {self._failing.result()}")
                if monotonic() > give_up:
                    raise DeviceError(
                        f"{program.name} was not ready after {program.start_seconds:.0f} seconds; its last "
                        f"lines:\n{self._last()}"
                    )
        self._begin_watch()

    async def start(self) -> None:
        """Start it again after a crash. Raises DeviceError, as `open`."""
        await self._gather()
        await self._launch()

    async def ended(self) -> str:
        assert self._process is not None
        reason = await self._crash(self._process)
        # Requests that fail now report this.
        self._detail = f"{reason}, and is restarting"
        self._stop_watch()
        return reason

    async def failed(self, reason: str, failures: int, wait_seconds: float | None) -> None:
        program = self._program
        # If a companion has failed, the server may wait for it forever, and its requests with it.
        await self._end(min(program.stop_seconds, FAILED_STOP_SECONDS))
        if wait_seconds is None:
            last = self._last().splitlines()[-1]
            self._detail = f"crashed {failures} times and is not restarted again; its last line: {last}"
            self._say(self.detail)
            return
        reason = reason.partition(";")[0].removeprefix(f"{program.name} ")
        self._detail = f"{reason}, and is restarting"
        self._say(f"{reason}; restarting it in {wait_seconds:g} s ({failures} of {program.restarts.most:g})")

    async def _crash(self, process: asyncio.subprocess.Process) -> str:
        """Wait for the end of the process, the failure of a companion or a long silence, and return a description of
        it.
        """
        ended, silent = asyncio.create_task(process.wait()), asyncio.create_task(self._silence())
        tasks = [ended, silent, *([self._failing] if self._failing is not None else [])]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._failing is not None and self._failing.done():
                return self._failing.result()
            return silent.result() if silent.done() else f"crashed with status {ended.result()}"
        finally:
            ended.cancel()
            silent.cancel()

    async def _silence(self) -> str:
        """Check its health until it has been silent for too long, and return a description of that."""
        program, watch = self._program, self._watch
        assert watch is not None
        every = program.hang_seconds / CHECKS
        async with httpx.AsyncClient(timeout=max(every, POLL_SECONDS * 8), trust_env=False) as client:
            while not self._hung.is_set():
                if await answers(client, program.health_url):
                    watch.beat()
                with suppress(TimeoutError):
                    async with asyncio.timeout(every):
                        await self._hung.wait()
        return f"did not respond for {program.hang_seconds:g} s"

    def _begin_watch(self) -> None:
        self._detail = "ready"
        self._watch = Watch(self._program.hang_seconds, self._hung.set)

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        self._hung.clear()

    async def _end(self, stop_seconds: float | None = None) -> None:
        """End the process, all child processes that it left behind, and its companions. It is killed if it does not end
        within ``stop_seconds``, by default those of the program.
        """
        self._stop_watch()
        if self._failing is not None:
            self._failing.cancel()
            self._failing = None
        if self._program.companions is not None:
            await self._program.companions.stop()
        if self._process is not None:
            await end_group(self._process, self._program.stop_seconds if stop_seconds is None else stop_seconds)
            # From now on, the process id may belong to another process.
            self._process = None
        # If this is cancelled, the reading ends as well, and the next call must not wait for it.
        log, self._log = self._log, None
        if log is not None:
            # A process that has left the group may hold the pipe open; the timeout then ends the reading.
            with suppress(TimeoutError):
                async with asyncio.timeout(LOG_END_SECONDS):
                    await log

    async def _pass_on(self, read_end: int) -> None:
        """Copy its log to our standard error, each line prefixed with its name. Progress bars become lines."""
        reader = asyncio.StreamReader()
        pipe = os.fdopen(read_end, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        pending = b""
        try:
            while part := await reader.read(MAX_LINE_BYTES):
                *lines, pending = re.split(rb"[\r\n]+", pending + part)
                if len(pending) > MAX_LINE_BYTES:
                    lines, pending = [*lines, pending], b""
                for line in lines:
                    self._heard(line.decode(errors="replace"))
        finally:
            transport.close()
            self._heard(pending.decode(errors="replace"))

    def _heard(self, line: str) -> None:
        if line.strip():
            self._lines.append(line)
            self._say(line)

    def _say(self, line: str) -> None:
        log_output(self._program.name, line)

    def _last(self) -> str:
        return "\n".join(self._lines) or "(its log is empty)"


def ended_with_us(command: Sequence[str]) -> Sequence[str]:
    """The command, wrapped so that Linux ends it if this process is killed and cannot do so itself."""
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    return command if setpriv is None else [setpriv, "--pdeathsig", "TERM", *command]


async def answers(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).is_success
    except httpx.HTTPError:
        return False


async def end_group(leader: asyncio.subprocess.Process, stop_seconds: float) -> None:
    """End a process and the child processes that it left behind. They are killed if it does not end in this time."""
    if leader.returncode is None:
        signal_group(leader.pid, signal.SIGTERM)
        # Not `wait_for`, which before Python 3.12 hides a cancellation in the moment of the process's end.
        with suppress(TimeoutError):
            async with asyncio.timeout(stop_seconds):
                await leader.wait()
    signal_group(leader.pid, signal.SIGKILL)
    await leader.wait()


def signal_group(leader: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
