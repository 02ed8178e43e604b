"""Link: a connection that carries keys and values, one transfer after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .events import Clock


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """``latency_seconds`` is that of each transfer, during which the link is free for others."""

    bytes_per_second: float
    latency_seconds: float = 0.0


class Link:
    """``sent_bytes`` counts what was carried."""

    def __init__(self, clock: Clock, speed: LinkSpeed) -> None:
        self._clock, self._speed = clock, speed
        self._free_at = 0.0
        self.sent_bytes = 0

    def send(self, size_bytes: int, arrived: Callable[[], None]) -> None:
        """Call ``arrived`` when the last byte is there."""
        self.sent_bytes += size_bytes
        self._free_at = max(self._clock.now, self._free_at) + size_bytes / self._speed.bytes_per_second
        self._clock.at(self._free_at + self._speed.latency_seconds, arrived)
