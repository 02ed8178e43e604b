"""The answer machine and the watch, against traces that all languages share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nearfar.server_fallback.router.answer.answer_machine import Rules, begin, step
from nearfar.server_fallback.router.answer.events import EFFECTS, EVENTS, effect_json, event_of_json
from nearfar.server_fallback.router.answer.watch import Watch
from nearfar.server_fallback.router.decision.policy import Escalation

GIVEN = json.loads((Path(__file__).parents[2] / "conformance/router_traces.json").read_text())
BASE = {"near_first_token_ms": 900, "far_first_token_ms": 700, "between_tokens_ms": 500}


def rules_of(json_rules: dict[str, Any]) -> Rules:
    given = {**BASE, **json_rules}
    return Rules(**{**given, "resumes": tuple(given.get("resumes", ("near", "far")))})


@pytest.mark.parametrize("trace", GIVEN["traces"], ids=lambda trace: trace["name"])
def test_each_event_of_a_trace_has_its_effects(trace: dict[str, Any]) -> None:
    state = begin(rules_of(trace["rules"]))
    for number, row in enumerate(trace["steps"]):
        state, effects = step(state, event_of_json(row["event"]))
        assert [effect_json(effect) for effect in effects] == row["effects"], f"step {number}"


def test_the_traces_have_every_event_and_every_effect() -> None:
    rows = [row for trace in GIVEN["traces"] for row in trace["steps"]]
    assert {row["event"]["type"] for row in rows} == set(EVENTS)
    assert {effect["type"] for row in rows for effect in row["effects"]} == set(EFFECTS.values())


NOTHING_WATCHED = {"min_mean_logprob": None, "max_mean_entropy": None, "repetition": None}


@pytest.mark.parametrize("case", GIVEN["watch"], ids=lambda case: case["name"])
def test_the_watch_returns_the_reasons_and_doubts_of_a_case(case: dict[str, Any]) -> None:
    watch = Watch(Escalation.model_validate({**NOTHING_WATCHED, **case["rules"]}))
    heard = [(watch.add(text, logprob, alternatives), watch.doubts) for text, logprob, alternatives in case["tokens"]]
    assert heard == list(zip(case["reasons"], case["doubts"], strict=True))


def test_a_failing_schema_escalates_if_the_policy_requires_it() -> None:
    assert Watch(Escalation()).schema_failed() == "escalated_schema"
    assert Watch(Escalation(failing_schema=False)).schema_failed() is None


def test_the_entropy_of_an_impossible_token_is_zero() -> None:
    watch = Watch(Escalation(window_tokens=1, min_mean_logprob=-50.0, max_mean_entropy=0.1, repetition=None))
    assert watch.add("a", float("-inf"), [0.0, float("-inf")]) == "escalated_logprob"
    assert watch.add("a", 0.0, [0.0, float("-inf")]) is None


def test_an_event_with_an_unknown_type_or_field_is_an_error() -> None:
    with pytest.raises(KeyError):
        event_of_json({"type": "begin"})
    with pytest.raises(TypeError):
        event_of_json({"type": "tick", "name": "hedge"})
