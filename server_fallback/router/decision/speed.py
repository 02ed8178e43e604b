"""Speed and FarQueue: how fast a side has been lately, and how long requests wait at the far server. Pure.

Speed averages the time per token and not the rate, because a mean of rates hides the answers that stalled, and these
matter most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...schema.about import QUEUE_HEADER

# The weight of the newest answer in the mean; the older ones share the rest.
NEWEST_WEIGHT = 0.3
# A queue changes faster than an app sends requests, so an older report says nothing about now.
REPORT_SECONDS = 30.0
# Longer than any queue in milliseconds, and within the precision of a number.
MAX_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Finished:
    """An answer that ended well.

    ``computed_tokens`` are the prompt's tokens that were not in the cache. Seconds count from the request, without the
    time in a queue. ``round_trip_seconds`` is None if it was not measured, and for near.
    """

    computed_tokens: int
    completion_tokens: int
    first_token_seconds: float
    total_seconds: float
    round_trip_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a side. None if nothing is known yet."""

    prefill_tokens_per_second: float | None = None
    decode_tokens_per_second: float | None = None
    round_trip_seconds: float | None = None

    def after(self, finished: Finished) -> Speed:
        round_trip = finished.round_trip_seconds
        prefill_seconds = finished.first_token_seconds - (round_trip or 0.0)
        decode_seconds = finished.total_seconds - finished.first_token_seconds
        return Speed(
            _rate(self.prefill_tokens_per_second, finished.computed_tokens, prefill_seconds),
            _rate(self.decode_tokens_per_second, finished.completion_tokens - 1, decode_seconds),
            self.round_trip_seconds if round_trip is None else _mean(self.round_trip_seconds, round_trip),
        )


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


def _rate(old: float | None, tokens: int, seconds: float) -> float | None:
    """The old rate if this answer shows nothing: no token, or no time that a clock could measure."""
    if tokens < 1 or seconds <= 0:
        return old
    return 1 / _mean(None if old is None else 1 / old, seconds / tokens)


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + NEWEST_WEIGHT * (new - old)
