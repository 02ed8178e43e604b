"""Timers: those that the answer machine asks for. A name and a time flow in, and when it is due a `Due` flows out, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from .events import TimerName


@dataclass(frozen=True, slots=True)
class Due:
    """A timer that was not stopped or started anew since has its last ``serial``."""

    timer: TimerName
    serial: int


class Timers:
    """``tell`` gets what is due, in the running event loop."""

    def __init__(self, tell: Callable[[Due], object]) -> None:
        self._tell = tell
        self._running: dict[TimerName, tuple[int, asyncio.TimerHandle]] = {}
        self._serial = 0

    def set(self, name: TimerName, ms: int) -> None:
        self.stop(name)
        self._serial += 1
        handle = asyncio.get_running_loop().call_later(ms / 1000, self._tell, Due(name, self._serial))
        self._running[name] = (self._serial, handle)

    def stop(self, name: TimerName) -> None:
        if name in self._running:
            self._running.pop(name)[1].cancel()

    def rings(self, due: Due) -> bool:
        """Whether what was told still holds; the timer is over then."""
        serial, _ = self._running.get(due.timer, (None, None))
        if serial != due.serial:
            return False
        del self._running[due.timer]
        return True

    def close(self) -> None:
        for _, handle in self._running.values():
            handle.cancel()
