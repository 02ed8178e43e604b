"""Costs: how long each side would take, and what far would charge. Unknown values are None."""

from __future__ import annotations

from typing import NamedTuple

from .policy import Policy
from .situation import SideState, Situation

# The expected length of an answer without a limit.
EXPECTED_TOKENS = 64


class Times(NamedTuple):
    """In seconds after the request is sent."""

    first_token_seconds: float | None
    total_seconds: float | None


def near_times(situation: Situation) -> Times:
    return _times(situation.near, situation.near.queue_seconds, situation)


def far_times(situation: Situation) -> Times:
    far = situation.far
    return _times(
        far, None if far.round_trip_seconds is None else far.queue_seconds + far.round_trip_seconds, situation
    )


def far_usd(policy: Policy, situation: Situation) -> float | None:
    """The expected price of far's answer. Cached tokens cost the same."""
    if situation.far.prompt_tokens is None:
        return None
    prompt = situation.far.prompt_tokens * policy.price.prompt_usd_per_million
    return (prompt + expected_tokens(situation) * policy.price.completion_usd_per_million) / 1e6


def expected_tokens(situation: Situation) -> int:
    return EXPECTED_TOKENS if situation.max_tokens is None else situation.max_tokens


def _times(side: SideState, wait_seconds: float | None, situation: Situation) -> Times:
    if wait_seconds is None or side.prompt_tokens is None or not side.prefill_tokens_per_second:
        return Times(None, None)
    first = wait_seconds + max(side.prompt_tokens - side.cached_tokens, 0) / side.prefill_tokens_per_second
    decode = side.decode_tokens_per_second
    return Times(first, first + expected_tokens(situation) / decode if decode else None)
