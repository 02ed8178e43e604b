"""The loop of a worker process: it reads calls as frames from stdin, and writes their results to stdout.

The process may use a limited amount of memory. It ends when its input ends, and by itself if one call takes far too
long, because a server that was killed cannot end it. See `worker`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from nearfar.compiler.runtime.errors import NearfarError

from .frames import Call, Returned, read_frame, write_frame

# The first frame that a worker writes.
STARTED = "started"
# Sends a message to the server while a call runs.
Send = Callable[[object], None]


def serve(open_worker: Callable[[Send], Callable[[object], object]]) -> None:
    """``open_worker`` loads what the worker needs and returns the function that answers calls. Its NearfarErrors and
    MemoryErrors are raised in the server; another error ends the process.

    The arguments of the process are its memory limit in bytes, 0 for none; the bytes that it may retain, above which it
    ends after a call, because a process returns little of the memory that it has used; the maximum seconds of one call,
    0 for any; and its niceness.
    """
    memory_bytes, keeps_bytes, most_seconds, niceness = map(int, sys.argv[1:5])
    # Output of libraries must not get between the frames.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # Ctrl-C reaches the whole process group; the server ends this process itself, after its last answers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if memory_bytes:
        _limit_memory(memory_bytes)
    if sys.platform != "win32":
        os.nice(niceness)
    answer = open_worker(lambda message: write_frame(replies, message))
    try:
        write_frame(replies, STARTED)
        ends = False
        while not ends:
            call = read_frame(sys.stdin.buffer)
            assert isinstance(call, Call)
            _end_after(most_seconds)
            value, failure = None, None
            try:
                value = answer(call.message)
            except (NearfarError, MemoryError) as error:
                # Its frames hold what has taken the memory.
                failure = error.with_traceback(None)
            _end_after(0)
            ends = _resident_bytes() > keeps_bytes
            write_frame(replies, Returned(call.number, value, failure, ends))
    except (EOFError, BrokenPipeError):
        return


def _limit_memory(size_bytes: int) -> None:
    """Windows has no such limit, and macOS does not enforce it."""
    if sys.platform != "win32":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = size_bytes if hard == resource.RLIM_INFINITY else min(size_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _resident_bytes() -> int:
    """The memory that the process holds; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _end_after(seconds: int) -> None:
    if sys.platform != "win32":
        signal.alarm(seconds)
