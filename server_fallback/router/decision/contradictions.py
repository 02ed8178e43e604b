"""Contradictions in a policy whose values are each allowed: yields the path of each and what is wrong there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .policy import Policy


def contradictions(policy: Policy) -> Iterator[tuple[str, str]]:
    yield from _of_labels(policy)
    if policy.mode in ("near-only", "far-only"):
        yield from _of_one_side(policy)
    if policy.mode == "far-only":
        if policy.private.labels:
            yield "private.labels", "in mode far-only a private request could never be answered"
        if policy.private.patterns:
            yield "private.patterns", "in mode far-only a private request could never be answered"
    if policy.mode == "near-only":
        if policy.budget.far_usd_per_day is not None:
            yield "budget.far_usd_per_day", "in mode near-only nothing is spent on the far side"
        if policy.budget.far_requests_per_day is not None:
            yield "budget.far_requests_per_day", "in mode near-only the far side gets no requests"
    if policy.mode == "prefer-far" and policy.timeouts.hedge_after_ms is not None:
        yield "timeouts.hedge_after_ms", "hedging asks far if near is slow, but mode prefer-far asks far first"
    if policy.mode != "auto":
        yield from _of_auto(policy)


def _of_labels(policy: Policy) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for path, labels in (("labels", policy.labels), ("private.labels", policy.private.labels)):
        for label in labels:
            if label in seen:
                yield path, f"the label {label!r} appears twice; a label is either plain or private"
            seen.add(label)


def _of_one_side(policy: Policy) -> Iterator[tuple[str, str]]:
    problem = f"in mode {policy.mode} there is no other side"
    if policy.escalation.then != "never":
        yield "escalation.then", problem
    if policy.speculation is not None:
        yield "speculation", problem
    if policy.fallback.near_continues:
        yield "fallback.near_continues", problem
    if policy.fallback.far_takes_over:
        yield "fallback.far_takes_over", problem
    if policy.timeouts.hedge_after_ms is not None:
        yield "timeouts.hedge_after_ms", problem


def _of_auto(policy: Policy) -> Iterator[tuple[str, str]]:
    is_set = {
        "device.min_battery": policy.device.min_battery is not None,
        "device.max_thermal": policy.device.max_thermal is not None,
        "costs.max_first_token_seconds": policy.costs.max_first_token_seconds is not None,
        "costs.max_total_seconds": policy.costs.max_total_seconds is not None,
        "quality.predictor": policy.quality.predictor is not None,
        "quality.threshold": policy.quality.threshold != 0,
    }
    for path, is_used in is_set.items():
        if is_used:
            yield path, f"only mode auto uses it; the mode is {policy.mode}"
