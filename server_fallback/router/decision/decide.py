"""The decision: who answers a request, and why, from a policy and a situation. Pure and total: every situation has a
result.

Hard rules come first (private, the mode, what a side lacks, a pin), then preference, then the device, the time limits,
the costs and the predictor.
"""

from __future__ import annotations

from typing import cast, get_args

from nearfar.compiler.errors import RequestError

from ...schema.route import Side
from .costs import far_times, far_usd, near_times
from .decision import Decision, DecisionReason, Lack, PinnedLack, Scores
from .features import last_user_text
from .policy import Costs, Policy
from .situation import NearState, SideState, Situation, Thermal

Choice = tuple[Side | None, DecisionReason]
_THERMALS: tuple[Thermal, ...] = get_args(Thermal)


def decide(policy: Policy, situation: Situation, *, private: bool | None = None) -> Decision:
    """``private`` is the result of an earlier decision about the same request; None: it is determined here, which takes
    time for long texts.

    Raises RequestError with the code "unknown_label" for a label that the policy does not have, and for nothing else.
    """
    _check_labels(policy, situation)
    if private is None:
        private = policy.private_check.is_private(situation)
    near = _near_lack(policy, situation)
    far = "private" if private else _far_lack(policy, situation)
    scores = score(policy, situation)
    side, reason = (
        _hard(situation.pin, near, far)
        or _preferred(policy)
        or _hinted(policy, situation.near)
        or _in_time(policy.costs, scores)
        or _by_gain(policy, scores)
    )
    return Decision(side, reason, private, scores)


def score(policy: Policy, situation: Situation) -> Scores:
    """The expectations for both sides, whether or not they may answer.

    Without a predictor both sides are assumed to be right.
    """
    near, far = near_times(situation), far_times(situation)
    usd = far_usd(policy, situation)
    rights = None
    if policy.quality.predictor is not None:
        rights = policy.quality.predictor.rights(
            last_user_text(situation.messages), situation.near_signals, situation.embedding
        )
    gain = None
    if policy.mode == "auto":
        waited = (
            0.0 if near.total_seconds is None or far.total_seconds is None else far.total_seconds - near.total_seconds
        )
        more = (usd or 0.0) + policy.costs.usd_per_second * waited
        gain = (rights.far - rights.near if rights else 0.0) - more
    return Scores(
        near_right=rights and rights.near,
        far_right=rights and rights.far,
        gain=gain,
        near_first_token_seconds=near.first_token_seconds,
        near_total_seconds=near.total_seconds,
        far_first_token_seconds=far.first_token_seconds,
        far_total_seconds=far.total_seconds,
        far_usd=usd,
    )


def may_guess(policy: Policy, situation: Situation) -> bool:
    """Whether near may guess tokens for far's answer: near could answer itself, and its device need not be spared."""
    return _near_lack(policy, situation) is None and _hinted(policy, situation.near) is None


def _check_labels(policy: Policy, situation: Situation) -> None:
    known = {*policy.labels, *policy.private.labels}
    labels_by_path = [("labels", situation.labels)]
    labels_by_path += [
        (f"messages[{number}].labels", message.labels) for number, message in enumerate(situation.messages)
    ]
    for path, labels in labels_by_path:
        for label in labels:
            if label not in known:
                has = ", ".join(sorted(known)) or "none"
                raise RequestError(
                    f"{path}: the policy has no label {label!r}; it has {has}", code="unknown_label", param=path
                )


def _near_lack(policy: Policy, situation: Situation) -> Lack | None:
    """The first thing that near lacks; None if it may answer."""
    if policy.mode == "far-only":
        return "mode"
    if not situation.near.available:
        return "near_unavailable"
    return _lack(situation.near, situation)


def _far_lack(policy: Policy, situation: Situation) -> Lack | None:
    if policy.mode == "near-only":
        return "mode"
    far, budget = situation.far, policy.budget
    if not far.online:
        return "offline"
    lack = _lack(far, situation)
    if lack is not None:
        return lack
    requests, usd = budget.far_requests_per_day, budget.far_usd_per_day
    is_spent = (requests is not None and far.requests_today >= requests) or (
        usd is not None and far.spent_usd_today >= usd
    )
    return "budget" if is_spent else None


def _lack(side: SideState, situation: Situation) -> Lack | None:
    if side.circuit == "open":
        return "circuit_open"
    answer = 1 if situation.max_tokens is None else situation.max_tokens
    if side.context is not None and side.prompt_tokens is not None and side.prompt_tokens + answer > side.context:
        return "context"
    if situation.tools and not side.tools:
        return "tools"
    if situation.vision and not side.vision:
        return "vision"
    if situation.language is not None and side.languages is not None and situation.language not in side.languages:
        return "language"
    return None


def _hard(pin: Side | None, near: Lack | None, far: Lack | None) -> Choice | None:
    """None if both sides may answer and the request is not pinned."""
    pinned = near if pin == "near" else far if pin == "far" else None
    if pinned is not None:
        return None, "private" if pinned == "private" else cast(PinnedLack, f"pinned_{pinned}")
    if near is not None and far is not None:
        # Far is checked last, unless it was ruled out from the start.
        return None, near if far in ("private", "mode") else far
    if near is not None:
        return "far", near
    if far is not None:
        return "near", far
    return None if pin is None else (pin, "pinned")


def _preferred(policy: Policy) -> Choice | None:
    if policy.mode == "prefer-near":
        return "near", "prefer"
    return ("far", "prefer") if policy.mode == "prefer-far" else None


def _hinted(policy: Policy, near: NearState) -> Choice | None:
    """Whether the device should be spared."""
    least, hottest = policy.device.min_battery, policy.device.max_thermal
    if least is not None and near.battery is not None and near.battery < least and not near.charging:
        return "far", "battery"
    if hottest is not None and near.thermal is not None and _THERMALS.index(near.thermal) > _THERMALS.index(hottest):
        return "far", "thermal"
    return None


def _in_time(costs: Costs, scores: Scores) -> Choice | None:
    near = _is_late(costs, scores.near_first_token_seconds, scores.near_total_seconds)
    far = _is_late(costs, scores.far_first_token_seconds, scores.far_total_seconds)
    return None if near == far else ("far" if near else "near", "seconds")


def _is_late(costs: Costs, first: float | None, total: float | None) -> bool:
    """Unknown times are not late."""
    most_first, most_total = costs.max_first_token_seconds, costs.max_total_seconds
    late_first = first is not None and most_first is not None and first > most_first
    return late_first or (total is not None and most_total is not None and total > most_total)


def _by_gain(policy: Policy, scores: Scores) -> Choice:
    side: Side = "far" if scores.gain is not None and scores.gain > policy.quality.threshold else "near"
    return side, "cost" if policy.quality.predictor is None else "quality"
