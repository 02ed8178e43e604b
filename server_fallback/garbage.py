"""The memory of processes that serve: garbage collections are rare, because each delays every answer, and freed memory
goes back to the system.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable
from functools import cache

COLLECTION_SECONDS = 30.0
# A parameter of glibc's mallopt(3), and its value.
M_ARENA_MAX, MAX_ARENAS = -8, 2


def collect_garbage_rarely() -> None:
    """Call once everything that stays in memory exists: it is not scanned any more. What is closed later, such as
    models, must not exist yet. It should not refer to itself either, because it would then stay for minutes.

    With Python's default thresholds, reading a large body makes the garbage collector scan all objects of the process
    several times, which takes 0.2 s, and an engine's step with 256 sequences starts three collections. Young objects
    are still scanned often, because the traceback of an error may hold a body.
    """
    gc.freeze()
    gc.set_threshold(5_000, 20, 20)


class SeldomCollections:
    """Complete collections of garbage, at most one in `COLLECTION_SECONDS`. Closed models leave little that refers to
    itself, but errors, reloads and broken connections do, and the thresholds alone would keep that for minutes. One
    takes some 20 ms, because what existed before `collect_garbage_rarely` is not scanned.
    """

    def __init__(self) -> None:
        self._last = time.monotonic()

    def collect(self) -> None:
        if time.monotonic() - self._last >= COLLECTION_SECONDS:
            gc.collect()
            self._last = time.monotonic()


def limit_arenas() -> None:
    """glibc gives threads up to 8 arenas per processor, and memory freed in one arena cannot serve another: this was a
    third of the memory in a long test under load. Does nothing if the C library is not glibc.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(M_ARENA_MAX, MAX_ARENAS)


def free_memory() -> None:
    """Return freed memory to the system, of which glibc keeps much: of each model that was closed 1.6 MB, and trees ten
    times the size of a text that xgrammar reads or writes. Does nothing if the C library is not glibc.
    """
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


@cache
def _of_glibc(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
