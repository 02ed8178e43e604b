"""The decision: the cases that both languages share, and properties of any policy and situation."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router_cases import VECTORS, situation_of

from nearfar.compiler.errors import RequestError
from nearfar.server_fallback.router.decision.decide import decide
from nearfar.server_fallback.router.decision.decision import DecisionReason, Lack, PinnedLack
from nearfar.server_fallback.router.decision.features import text_features, text_terms
from nearfar.server_fallback.router.decision.policy import Policy
from nearfar.server_fallback.router.decision.situation import FarState, Message, NearSignals, NearState, Situation
from nearfar.server_fallback.router.decision.speed import Finished, Speed


class Numbers(dict[str, float | None]):
    """Equal to values with these numbers to 1e-9, and with None in the same fields."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and all(
            other[name] is None if value is None else other[name] == pytest.approx(value, rel=1e-9, abs=1e-9)
            for name, value in self.items()
        )


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_decisions_match_the_conformance_cases(case: dict[str, Any]) -> None:
    if "error" in case:
        with pytest.raises(RequestError) as caught:
            decide(Policy.read(case["policy"]), situation_of(case["situation"]))
        assert {key: caught.value.details[key] for key in ("code", "param")} == case["error"]
        return
    decision = decide(Policy.read(case["policy"]), situation_of(case["situation"])).to_json()
    expected = {"scores": {}, **case["decision"]}
    assert {**decision, "scores": {}} == {**expected, "scores": {}}
    assert decision["scores"] == Numbers(expected["scores"])


def test_every_reason_has_a_case() -> None:
    reasons = {reason for kind in get_args(DecisionReason) for reason in get_args(kind) or [kind]}
    assert {case["decision"]["reason"] for case in VECTORS["cases"] if "decision" in case} == reasons
    assert {f"pinned_{lack}" for lack in get_args(Lack) if lack != "private"} == set(get_args(PinnedLack))


@pytest.mark.parametrize("case", VECTORS["features"], ids=lambda case: case["text"])
def test_features_match_the_conformance_cases(case: dict[str, Any]) -> None:
    assert text_features(case["text"]) == pytest.approx(case["features"], rel=1e-9)
    assert text_terms(case["text"]) == case["terms"]


@pytest.mark.parametrize("case", VECTORS["speeds"], ids=lambda case: case["name"])
def test_speeds_match_the_conformance_cases(case: dict[str, Any]) -> None:
    speed = Speed()
    for finished in case["finished"]:
        speed = speed.after(Finished(**finished))
    assert asdict(speed) == Numbers(case["speed"])


POLICIES = [
    Policy.read({"version": 1, "labels": ["public"], **rest})
    for rest in (
        {"mode": "near-only"},
        {"mode": "far-only"},
        {"mode": "prefer-near", "private": {"patterns": ["[0-9]{3}"]}},
        {"mode": "prefer-far", "budget": {"far_requests_per_day": 10}},
        {
            "mode": "auto",
            "private": {"patterns": ["[0-9]{3}"]},
            "costs": {"usd_per_second": 0.01, "max_total_seconds": 3},
        },
        {"mode": "auto", "device": {"min_battery": 0.2, "max_thermal": "fair"}, "quality": {"threshold": -1}},
    )
]
seconds = st.none() | st.floats(0, 1e6)
counts = st.none() | st.integers(0, 10**6)
circuits = st.sampled_from(["closed", "open", "half-open"])
languages = st.none() | st.lists(st.sampled_from(["en", "de"])).map(tuple)
both_sides = {
    "context": counts,
    "tools": st.booleans(),
    "vision": st.booleans(),
    "languages": languages,
    "prompt_tokens": counts,
    "cached_tokens": st.integers(0, 10**6),
    "prefill_tokens_per_second": seconds,
    "decode_tokens_per_second": seconds,
    "queue_seconds": st.floats(0, 1e6),
    "circuit": circuits,
}
near_states = st.builds(
    NearState,
    available=st.booleans(),
    battery=st.none() | st.floats(0, 1),
    charging=st.none() | st.booleans(),
    **both_sides,
)
far_states = st.builds(
    FarState,
    online=st.booleans(),
    round_trip_seconds=seconds,
    spent_usd_today=st.floats(0, 10),
    requests_today=st.integers(0, 20),
    **both_sides,
)
labels = st.lists(st.sampled_from(["public", "private"])).map(tuple)
texts = st.text() | st.from_regex("[0-9]{2,4}")
situations = st.builds(
    Situation,
    messages=st.lists(
        st.builds(Message, role=st.sampled_from(["user", "assistant"]), content=texts, labels=labels), max_size=4
    ).map(tuple),
    near=near_states,
    far=far_states,
    labels=labels,
    texts=st.lists(texts, max_size=2).map(tuple),
    pin=st.sampled_from([None, "near", "far"]),
    max_tokens=st.none() | st.integers(1, 10**6),
    tools=st.booleans(),
    vision=st.booleans(),
    language=st.sampled_from([None, "en", "de"]),
    near_signals=st.none() | st.builds(NearSignals, first_entropy=st.none() | st.floats(0, 20)),
)


@settings(max_examples=150)
@given(policy=st.sampled_from(POLICIES), situation=situations)
def test_every_situation_is_decided_and_private_requests_never_go_far(policy: Policy, situation: Situation) -> None:
    bears = {*situation.labels, *(label for message in situation.messages for label in message.labels)}
    if not bears <= {*policy.labels, *policy.private.labels}:
        with pytest.raises(RequestError, match="no label 'private'"):
            decide(policy, situation)
        return
    decision = decide(policy, situation)
    texts = [*(message.content for message in situation.messages), *map("".join, situation.texts)]
    found = policy.private.patterns and any(re.search("[0-9]{3}", text) for text in texts)
    if found or bears & set(policy.private.labels):
        assert decision.private
    if decision.private or policy.mode == "near-only":
        assert decision.side != "far"
    if decision.side == "near":
        assert situation.near.available
        assert situation.near.circuit != "open"
    if decision.side == "far":
        assert situation.far.online
        assert situation.far.circuit != "open"
    assert situation.pin in (None, decision.side) or decision.side is None
