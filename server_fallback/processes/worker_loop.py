"""The loop of a worker process: it reads requests as frames from stdin, and writes one frame to stdout for each reply.

A frame is a length and a pickle, which is safe here, because both sides run our own code with the same rights.

The process may use a limited amount of memory. It ends when its input ends, and by itself if one request takes far too
long, because a server that was killed cannot end it. See `worker`.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

# The first frame that a worker writes.
STARTED = "started"


@dataclass(frozen=True, slots=True)
class Reply:
    """``ends``: the worker ends after this reply, because it holds more memory than it may."""

    value: object
    ends: bool


def serve(open_worker: Callable[[], Callable[[object], object]]) -> None:
    """``open_worker`` loads what the worker needs and returns the function that answers requests.

    The arguments of the process are its memory limit in bytes; the bytes that it may retain, above which it ends after
    a request, because a process returns little of the memory that it has used; the maximum seconds of one request; and
    its niceness.
    """
    memory_bytes, keeps_bytes, most_seconds, niceness = map(int, sys.argv[1:5])
    # Output of libraries must not get between the frames.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # Ctrl-C reaches the whole process group; the server ends this process itself, after its last answers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory(memory_bytes)
    if sys.platform != "win32":
        os.nice(niceness)
    answer = open_worker()
    try:
        write_frame(replies, STARTED)
        while True:
            request = read_frame(sys.stdin.buffer)
            _end_after(most_seconds)
            value = answer(request)
            _end_after(0)
            reply = Reply(value, ends=_resident_bytes() > keeps_bytes)
            write_frame(replies, reply)
            if reply.ends:
                return
    except (EOFError, BrokenPipeError):
        return


def write_frame(stream: IO[bytes], value: object) -> None:
    data = pickle.dumps(value)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Any:
    """Raises EOFError if the other side has ended."""
    header = stream.read(8)
    data = stream.read(int.from_bytes(header, "little")) if len(header) == 8 else b""
    if not data:
        raise EOFError("the other process has ended")
    return pickle.loads(data)


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
