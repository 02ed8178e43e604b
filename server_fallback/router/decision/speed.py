"""Speed: how fast a side has been lately. Finished answers flow in one by one, rates for the next situation flow out. Pure.

Averaged is the time of a token, not the rate: a mean of rates forgets answers that stalled, which are those that matter.
"""

from __future__ import annotations

from dataclasses import dataclass

# Of the newest answer in the mean; the older ones have the rest.
NEWEST_WEIGHT = 0.3


@dataclass(frozen=True, slots=True)
class Finished:
    """An answer that ended well. ``computed_tokens`` are the prompt's without those of the cache. Seconds are from asking, waiting in a
    queue not counted. ``round_trip_seconds`` is None where it was not measured, and for near.
    """

    computed_tokens: int
    completion_tokens: int
    first_token_seconds: float
    total_seconds: float
    round_trip_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Speed:
    """A side's. None where nothing is known yet."""

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


def _rate(old: float | None, tokens: int, seconds: float) -> float | None:
    """The old one where this tells nothing: no token, or no time that a clock could see."""
    if tokens < 1 or seconds <= 0:
        return old
    return 1 / _mean(None if old is None else 1 / old, seconds / tokens)


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + NEWEST_WEIGHT * (new - old)
