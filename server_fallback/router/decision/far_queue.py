"""FarQueue: how long a request waits at the far server before its device begins, as the server's last answer told it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ...schema.about import QUEUE_HEADER

# A queue changes faster than an app asks: an older word of it says nothing of now.
TOLD_SECONDS = 30.0
# Longer than any queue in milliseconds, and no more digits than a number has.
MAX_DIGITS = 12


class FarQueue:
    """``now`` is in seconds, of any clock that does not go back."""

    def __init__(self) -> None:
        self._seconds, self._told_at = 0.0, float("-inf")

    def hear(self, headers: Mapping[str, str], now: float) -> None:
        """The headers of an answer; those of a server that does not tell change nothing."""
        told = headers.get(QUEUE_HEADER, "")
        if told.isascii() and told.isdigit() and len(told) <= MAX_DIGITS:
            self._seconds, self._told_at = int(told) / 1000, now

    def seconds(self, now: float) -> float:
        """0 where nothing was told in the last 30 s."""
        return self._seconds if now - self._told_at <= TOLD_SECONDS else 0.0
