"""Heartbeats: a process tells its server from its event loop that it works, and the server notices when it does not.

A long step of a device or a compilation of kernels runs on other threads, so the event loop beats meanwhile, and
reports how long the step has taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# One step of a device may take this many times as long: a long prompt of a large model on a CPU takes minutes.
STEP_FACTOR = 10
# A process that has been silent for this share of the time is not ready for requests.
UNREADY_SHARE = 0.25
BEATS = 20


def beat_seconds(hang_seconds: float) -> float:
    """The time between two beats."""
    return min(1.0, hang_seconds / BEATS)


class Heart:
    """Calls ``beat`` again and again on the running event loop, until `stop`."""

    def __init__(self, seconds: float, beat: Callable[[], None]) -> None:
        self._seconds, self._beat = seconds, beat
        self._timer: asyncio.TimerHandle | None = None
        self._next()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # It may belong to what this one belongs to.
        self._beat = lambda: None

    def _next(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._next)
        self._beat()


class Watch:
    """Calls ``on_hang`` once if a process is silent for ``hang_seconds``, or reports a longer step than allowed.

    It counts beats of its own: while this process or the machine is suspended, nobody is silent.
    """

    def __init__(self, hang_seconds: float, on_hang: Callable[[], None]) -> None:
        self._hang_seconds, self._on_hang = hang_seconds, on_hang
        self._tick = beat_seconds(hang_seconds)
        # The first count is now.
        self._missed = -1
        self._step_seconds = 0.0
        self._heart = Heart(self._tick, self._count)

    @property
    def silent_seconds(self) -> float:
        return self._missed * self._tick

    @property
    def is_ready(self) -> bool:
        return self.silent_seconds <= UNREADY_SHARE * self._hang_seconds

    def beat(self, step_seconds: float = 0.0) -> None:
        """The process has sent a beat."""
        self._missed, self._step_seconds = 0, step_seconds

    def stop(self) -> None:
        self._heart.stop()

    def _count(self) -> None:
        self._missed += 1
        if self.silent_seconds > self._hang_seconds or self._step_seconds > STEP_FACTOR * self._hang_seconds:
            self._heart.stop()
            self._on_hang()
