"""The answer machine and the watch, against traces that pages share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nearfar.server_fallback.router.answer.answer_machine import AnswerMachine, Rules, WatchedToken
from nearfar.server_fallback.router.answer.events import EFFECTS, EVENTS, Start, effect_of_json
from nearfar.server_fallback.router.decision.policy import Escalation

GIVEN = json.loads((Path(__file__).parents[2] / "conformance/router_traces.json").read_text())
BASE = {"near_first_token_ms": 900, "far_first_token_ms": 700, "between_tokens_ms": 500}
EVENTS_OF = {name: event for event, name in EVENTS.items()}


def rules_of(json_rules: dict[str, Any]) -> Rules:
    given = {**BASE, **json_rules}
    return Rules(**{**given, "resumes": tuple(given.get("resumes", ("near", "far")))})


@contextmanager
def machine_of(rules: Rules, watched: Escalation | None = None) -> Iterator[AnswerMachine]:
    machine = AnswerMachine(rules, watched)
    yield machine
    machine.close()


@pytest.mark.parametrize("trace", GIVEN["traces"], ids=lambda trace: trace["name"])
def test_each_event_of_a_trace_has_its_effects(trace: dict[str, Any]) -> None:
    with machine_of(rules_of(trace["rules"])) as machine:
        for number, row in enumerate(trace["steps"]):
            fields = dict(row["event"])
            event = EVENTS_OF[fields.pop("type")](**fields)
            assert list(machine.step(event)) == list(map(effect_of_json, row["effects"])), f"step {number}"


def test_the_traces_have_every_event_and_every_effect() -> None:
    rows = [row for trace in GIVEN["traces"] for row in trace["steps"]]
    assert {row["event"]["type"] for row in rows} == set(EVENTS.values())
    assert {effect["type"] for row in rows for effect in row["effects"]} == set(EFFECTS)


NOTHING_WATCHED = {"min_mean_logprob": None, "max_mean_entropy": None, "repetition": None}


@pytest.mark.parametrize("case", GIVEN["watch"], ids=lambda case: case["name"])
def test_the_watch_returns_the_reasons_and_doubts_of_a_case(case: dict[str, Any]) -> None:
    with machine_of(Rules(), Escalation.model_validate({**NOTHING_WATCHED, **case["rules"]})) as machine:
        heard = [(machine.watch([WatchedToken(*token)]), machine.doubts) for token in case["tokens"]]
    assert heard == list(zip(case["reasons"], case["doubts"], strict=True))


def test_the_entropy_of_an_impossible_token_is_zero() -> None:
    watched = Escalation(window_tokens=1, min_mean_logprob=-50.0, max_mean_entropy=0.1, repetition=None)
    with machine_of(Rules(), watched) as machine:
        assert machine.watch([WatchedToken("a", float("-inf"), [0.0, float("-inf")])]) == "escalated_logprob"
        assert machine.watch([WatchedToken("a", 0.0, [0.0, float("-inf")])]) is None


def test_a_closed_answer_takes_no_event() -> None:
    machine = AnswerMachine(Rules())
    machine.close()
    with pytest.raises(RuntimeError, match="there is no answer"):
        machine.step(Start("near", "prefer", standby=False))
