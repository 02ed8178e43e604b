"""The timers that the answer machine sets. When one is due, it sends a `Due` once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Due:
    """The timer is due, unless it was stopped or restarted since: then its ``serial`` is no longer the current one."""

    timer: str
    serial: int


class Timers:
    """Calls ``notify`` with each `Due`, in the running event loop."""

    def __init__(self, notify: Callable[[Due], object]) -> None:
        self._notify = notify
        self._running: dict[str, tuple[int, asyncio.TimerHandle]] = {}
        self._serial = 0

    def set(self, name: str, ms: int) -> None:
        self.stop(name)
        self._serial += 1
        handle = asyncio.get_running_loop().call_later(ms / 1000, self._notify, Due(name, self._serial))
        self._running[name] = (self._serial, handle)

    def stop(self, name: str) -> None:
        if name in self._running:
            self._running.pop(name)[1].cancel()

    def expire(self, due: Due) -> bool:
        """Whether this is the current `Due` of a running timer. If so, the timer ends."""
        serial, _ = self._running.get(due.timer, (None, None))
        if serial != due.serial:
            return False
        del self._running[due.timer]
        return True

    def close(self) -> None:
        for _, handle in self._running.values():
            handle.cancel()
