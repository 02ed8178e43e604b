"""Speed: how fast a side has been lately. Finished answers flow in one by one, rates for the next situation flow out. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finished:
    """An answer that ended well. ``computed_tokens`` of the prompt, those of the cache not counted; seconds from asking, without waiting in a queue.
    ``round_trip_seconds`` is None where it was not measured, and for near."""

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
        raise NotImplementedError
