"""FarQueue: how long requests wait at the far server."""

from __future__ import annotations

from collections.abc import Mapping

from ...schema.about import QUEUE_HEADER

# A queue changes faster than an app sends requests, so an older report says nothing about now.
REPORT_SECONDS = 30.0
# Longer than any queue in milliseconds, and within the precision of a number.
MAX_DIGITS = 12


class FarQueue:
    """The time that a request waits at the far server before its device begins, as the server's last answer reported
    it.

    ``now`` is in seconds of any monotonic clock.
    """

    def __init__(self) -> None:
        self._seconds, self._reported_at = 0.0, float("-inf")

    def update(self, headers: Mapping[str, str], now: float) -> None:
        """Read the headers of an answer; if they report no queue, nothing changes."""
        reported = headers.get(QUEUE_HEADER, "")
        if reported.isascii() and reported.isdigit() and len(reported) <= MAX_DIGITS:
            self._seconds, self._reported_at = int(reported) / 1000, now

    def seconds(self, now: float) -> float:
        """0 without a report in the last 30 s."""
        return self._seconds if now - self._reported_at <= REPORT_SECONDS else 0.0
