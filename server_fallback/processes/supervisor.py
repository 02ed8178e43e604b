"""Supervision: what has failed is started again, after a wait that grows with each failure, until it is given up."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from nearfar.compiler.runtime.errors import NearfarError

# A larger power is not a float.
MOST_DOUBLINGS = 100


@dataclass(frozen=True, slots=True)
class Restarts:
    """The wait before the first start after a failure is ``first_seconds``, and each further one is twice as long, up
    to ``longest_seconds``. After more than ``most`` failures with less than ``steady_seconds`` of work between them, it
    is given up.
    """

    first_seconds: float
    longest_seconds: float = math.inf
    most: float = math.inf
    steady_seconds: float = 60.0


class Supervised(Protocol):
    """What `supervise` keeps running, such as a process."""

    async def start(self) -> None:
        """Raises NearfarError or OSError if it does not start."""

    async def ended(self) -> str:
        """Wait until it fails, and return a description of the failure."""

    async def failed(self, reason: str, failures: int, wait_seconds: float | None) -> None:
        """Clean up after a failure, and report it. It is started again after ``wait_seconds``, or given up (None)."""


async def supervise(supervised: Supervised, restarts: Restarts) -> None:
    """Begins after the first start, and returns when ``supervised`` is given up. Cancel it to stop that on purpose."""
    failures = 0
    while True:
        started = monotonic()
        reason = await supervised.ended()
        if monotonic() - started > restarts.steady_seconds:
            failures = 0
        is_running = False
        while not is_running:
            failures += 1
            if failures > restarts.most:
                await supervised.failed(reason, failures, None)
                return
            wait = min(restarts.first_seconds * 2.0 ** min(failures - 1, MOST_DOUBLINGS), restarts.longest_seconds)
            await supervised.failed(reason, failures, wait)
            await asyncio.sleep(wait)
            try:
                await supervised.start()
                is_running = True
            except (NearfarError, OSError) as error:
                reason = error.message if isinstance(error, NearfarError) else str(error)
