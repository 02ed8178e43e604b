"""The number of threads of a runner on this machine's CPU."""

from __future__ import annotations

import os
from pathlib import Path

from nearfar.compiler.runtime.errors import RequestError

THREADS_VARIABLE = "NEARFAR_THREADS"
PROCESSORS = Path("/sys/devices/system/cpu")


def default_threads() -> int:
    """The value of NEARFAR_THREADS, or the number of cores that this process may use. Raises RequestError unless it is
    a positive number.
    """
    text = os.environ.get(THREADS_VARIABLE, "")
    if not text:
        # Two threads of one core share its vector units, so each core gets one.
        return len({core_of(processor) for processor in os.sched_getaffinity(0)})
    if not text.isdecimal() or int(text) < 1:
        raise RequestError(f"{THREADS_VARIABLE}={text}: must be a number of threads, 1 or more")
    return int(text)


def core_of(processor: int) -> str:
    """A name that the processors of a core share."""
    siblings = PROCESSORS / f"cpu{processor}/topology/thread_siblings_list"
    return siblings.read_text() if siblings.is_file() else str(processor)
