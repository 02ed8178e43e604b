"""Waits in a test until a condition holds. The limit only ends a test that would hang, and does not measure speed. On a
busy machine, work of milliseconds can take many seconds, so a short limit would fail tests at random.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

WAIT_SECONDS = 120.0
POLL_SECONDS = 0.01


def wait_until(holds: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up, f"did not happen within {seconds:g} s"
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


async def hang(*, quickly: bool = False) -> None:
    """Do not return. ``quickly``: meanwhile forty seconds of the loop's timers pass at once, step by step, so that a
    limit of twenty is over and one of `WAIT_SECONDS` is not.
    """
    for _ in range(20 if quickly else 0):
        # What was sent before is read meanwhile, and what is due begins.
        await asyncio.sleep(POLL_SECONDS)
        pass_seconds(2)
    await asyncio.sleep(3600)
