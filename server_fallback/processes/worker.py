"""Runs a worker process: it starts when it is first needed, gets one call at a time, and ends at a time limit. Unlike a
`Child`, it runs on all systems, and is limited in memory.

The code in it (`worker_loop.serve`) may hang, use too much memory or crash; the server continues and starts it again.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

from .frames import Call, Returned, read_frame, write_frame
from .worker_loop import STARTED

# The time until a process is ready for requests.
START_SECONDS = 60.0
# Limits of time count a process's processor time. A busy machine may let it wait for a processor, all in all this many
# times as long as the limit; a process that sleeps is ended then.
LONGEST_WAIT = 10
# At least the time between two checks of a limit.
CHECK_SECONDS = 0.01
# A request whose sender left may still end in this time, which is about the cost of starting another process.
ABANDONED_SECONDS = 0.5
# Signals of a process that ends through its own fault: the C library's abort, also after a failed allocation, and bad
# accesses.
_FAULTS = ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL")
# glibc's loader ends the process with this status if it cannot allocate a thread's variables.
_LOADER_FAILED = 127
EXIT_SECONDS = 1.0
# A device's threads wait for each other in each step, so a worker that takes a processor from one of them delays all
# answers.
NICENESS = 5
Result = TypeVar("Result")


class WorkerEnded(Exception):
    """The process ended before its reply.

    ``timed_out``: it ended at the time limit. ``status`` is None if it never ran.
    """

    def __init__(self, status: int | None = None) -> None:
        super().__init__("the worker process ended")
        self.timed_out = False
        self.status = status

    @property
    def fault(self) -> bool:
        """Whether it ended through its own fault, such as too little memory, and not from outside."""
        return self.status in _fault_statuses()


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """The limit of a call's time may be up to ``most_seconds``, for the case that this process is killed meanwhile. The
    worker ends after a call that leaves it with more than ``keeps_bytes``, and another one starts. ``niceness`` is how
    far it yields the processor to the models, up to 19.
    """

    memory_bytes: int
    keeps_bytes: int
    most_seconds: int
    niceness: int = NICENESS


@dataclass(slots=True)
class _Limit:
    """Of a request's time: ``seconds`` of the process's time, which was ``before`` when the request ``started``. None
    if the system does not report it.
    """

    seconds: float
    started: float
    before: float | None
    timer: asyncio.TimerHandle = field(init=False)
    timed_out: bool = False


class WorkerProcess:
    """``main`` of ``module`` calls `worker_loop.serve`. Without ``limits``, it ends after one call, and its log is that
    of this process.

    Used from one event loop, by one caller at a time (see `fair_turns`).
    """

    def __init__(self, module: str, limits: WorkerLimits | None) -> None:
        given = limits or WorkerLimits(0, 0, 0, 0)
        # With -m the module's classes would be others than those of requests.
        self._command = [
            sys.executable,
            "-c",
            f"from {module} import main; main()",
            *map(str, (given.memory_bytes, given.keeps_bytes, LONGEST_WAIT * given.most_seconds, given.niceness)),
        ]
        # Libraries write warnings about what a client sent.
        self._log = None if limits is None else subprocess.DEVNULL
        # Pipes are read on a thread: all platforms have blocking pipes, and large frames do not hold up the event loop.
        self._thread = ThreadPoolExecutor(1, "nearfar-worker")
        self._process: subprocess.Popen[bytes] | None = None
        # Whether it waits for requests, or answers one. For a moment, one that was killed still seems to run.
        self._usable = False
        self._closed = False
        # The processor time of the process when it was ended.
        self._ended_at: float | None = None
        # The time of the last request: the processor time of the process, or the elapsed time if the system does not
        # report it. A process that waits for a busy processor has done little.
        self.last_seconds = 0.0

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def call(self, message: object, seconds: float, on_message: Callable[[Any], None] = lambda _: None) -> Any:
        """The result of a call, which may take ``seconds`` of processor time, or of time if the system does not report
        it. ``on_message`` gets what the process sends before it. Cancelled, it ends the process
        unless that is about to reply. Raises WorkerEnded, and the error that the process returns.
        """
        await self.start()
        started, before, self._ended_at = monotonic(), self._processor_seconds(), None
        loop = asyncio.get_running_loop()
        try:
            returned = await self._limited(
                lambda process: self._exchange(
                    process, message, lambda received: loop.call_soon_threadsafe(on_message, received)
                ),
                seconds,
            )
        finally:
            after = self._processor_seconds() if self._ended_at is None else self._ended_at
            self.last_seconds = monotonic() - started if before is None or after is None else after - before
        if returned.error is not None:
            raise returned.error
        return returned.value

    async def start(self) -> None:
        """Start the process unless it runs. Raises WorkerEnded."""
        if self._closed:
            raise WorkerEnded
        if self._process is None or not self._usable or self._process.poll() is not None:
            # Until it has started, its first frame is not the reply to a request.
            self._usable = False
            await asyncio.get_running_loop().run_in_executor(self._thread, self._launch)
            if await self._limited(_next_frame, START_SECONDS) != STARTED:
                raise WorkerEnded
            self._usable = True

    def end(self) -> None:
        """End the process; the next request starts another."""
        self._usable = False
        if self._process is not None:
            self._ended_at = self._processor_seconds()
            self._process.kill()

    def close(self) -> None:
        """End the process for good."""
        self._closed = True
        self.end()
        self._thread.submit(self._collect)
        self._thread.shutdown(wait=False)

    def _processor_seconds(self) -> float | None:
        """The processor time that the process has used; None if it is gone or the system is not Linux."""
        if sys.platform != "linux" or self._process is None:
            return None
        with suppress(OSError):
            # The clock of another process, as Linux's clock_getcpuclockid() makes it.
            return time.clock_gettime(~self._process.pid << 3 | 2)
        return None

    async def _limited(self, work: Callable[[subprocess.Popen[bytes]], Result], seconds: float) -> Result:
        process = self._process
        if self._closed or process is None:
            # Closed while the process started.
            raise WorkerEnded
        loop = asyncio.get_running_loop()
        limit = _Limit(seconds, loop.time(), self._processor_seconds())
        limit.timer = loop.call_later(seconds, self._end_late, limit)
        running = loop.run_in_executor(self._thread, _or_ended, work, process)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            kill = loop.call_later(min(seconds, ABANDONED_SECONDS), self.end)

            def forget(done: asyncio.Future[Result]) -> None:
                kill.cancel()
                if done.exception() is not None:
                    self._usable = False

            running.add_done_callback(forget)
            await asyncio.wait({running})
            raise
        except WorkerEnded as ended:
            self._usable = False
            ended.timed_out = limit.timed_out
            raise
        finally:
            limit.timer.cancel()
            # Its error refers to this frame, and would keep the process until the garbage collector runs.
            del running

    def _end_late(self, limit: _Limit) -> None:
        """End a process whose time is over."""
        loop, now, left = asyncio.get_running_loop(), self._processor_seconds(), 0.0
        if limit.before is not None and now is not None:
            longest = LONGEST_WAIT * limit.seconds - (loop.time() - limit.started)
            left = min(limit.seconds - (now - limit.before), longest)
        if left > 0:
            limit.timer = loop.call_later(max(left, CHECK_SECONDS), self._end_late, limit)
        else:
            limit.timed_out = True
            self.end()

    def _exchange(
        self, process: subprocess.Popen[bytes], message: object, send: Callable[[object], object]
    ) -> Returned:
        assert process.stdin is not None
        write_frame(process.stdin, Call(0, message))
        while not isinstance(received := _next_frame(process), Returned):
            send(received)
        if received.ends:
            self._usable = False
        return received

    def _launch(self) -> None:
        self._collect()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            # glibc keeps freed memory in as many arenas as threads have allocated in.
            env={**os.environ, "MALLOC_ARENA_MAX": "2"},
        )
        if self._closed:
            # `close` found no process to end.
            self._collect()

    def _collect(self) -> None:
        """Remove what is left of a process."""
        process = self._process
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                # A frame may be half written.
                with suppress(OSError):
                    stream.close()


def _or_ended(work: Callable[[subprocess.Popen[bytes]], Result], process: subprocess.Popen[bytes]) -> Result:
    """The result of ``work``. Raises WorkerEnded once the process has ended."""
    try:
        return work(process)
    except (EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
        # Its pipes may be closed a moment before it has ended.
        with suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_SECONDS)
        process.kill()
        raise WorkerEnded(process.wait()) from error


def _next_frame(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdout is not None
    return read_frame(process.stdout)


def _fault_statuses() -> set[int]:
    """A Python process whose memory limit is reached ends with 1, by the exception."""
    return {1, _LOADER_FAILED, *(-getattr(signal, name) for name in _FAULTS if hasattr(signal, name))}
