"""Waits in a test until a condition holds. The limit only ends a test that would hang, and does not measure speed. On a
busy machine, work of milliseconds can take many seconds, so a short limit would fail tests at random.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

WAIT_SECONDS = 120.0
POLL_SECONDS = 0.01


def wait_until(holds: Callable[[], bool]) -> None:
    give_up = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < give_up, f"did not happen within {WAIT_SECONDS:g} s"
        time.sleep(POLL_SECONDS)


async def until(holds: Callable[[], bool]) -> None:
    """The same, while other tasks run."""
    give_up = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < give_up, f"did not happen within {WAIT_SECONDS:g} s"
        await asyncio.sleep(POLL_SECONDS)


def pass_seconds(seconds: float) -> None:
    """Let the timers of the running loop, one of asyncio's, be due ``seconds`` earlier. A time limit that a test sets
    then ends after the step that the test has seen, however long that took.
    """
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]
