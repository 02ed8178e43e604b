"""The answer machine and the watch, against traces that pages share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nearfar.server_fallback.router.answer.answer_machine import AnswerMachine, WatchedToken
from nearfar.server_fallback.router.decision.policy import Escalation, Policy

GIVEN = json.loads((Path(__file__).parents[2] / "conformance/router_traces.json").read_text())
RULES = Policy.read(
    {
        "version": 1,
        "mode": "prefer-near",
        "timeouts": {"near_first_token_ms": 900, "far_first_token_ms": 700, "between_tokens_ms": 500},
        "escalation": {"warm": "never"},
    }
).answer_rules(private=False, resumes=("near", "far"), reports_cache=True)


@contextmanager
def machine_of(rules: Mapping[str, Any], watched: Escalation | None = None) -> Iterator[AnswerMachine]:
    machine = AnswerMachine({**RULES, **rules}, watched)
    yield machine
    machine.close()


@pytest.mark.parametrize("trace", GIVEN["traces"], ids=lambda trace: trace["name"])
def test_each_event_of_a_trace_has_its_effects(trace: dict[str, Any]) -> None:
    with machine_of(trace["rules"]) as machine:
        for number, row in enumerate(trace["steps"]):
            assert machine.step(row["event"]) == row["effects"], f"step {number}"


NOTHING_WATCHED = {"min_mean_logprob": None, "max_mean_entropy": None, "repetition": None}


@pytest.mark.parametrize("case", GIVEN["watch"], ids=lambda case: case["name"])
def test_the_watch_returns_the_reasons_and_doubts_of_a_case(case: dict[str, Any]) -> None:
    with machine_of({}, Escalation.model_validate({**NOTHING_WATCHED, **case["rules"]})) as machine:
        heard = [(machine.watch([WatchedToken(*token)]), machine.doubts) for token in case["tokens"]]
    assert heard == list(zip(case["reasons"], case["doubts"], strict=True))


def test_the_entropy_of_an_impossible_token_is_zero() -> None:
    watched = Escalation(window_tokens=1, min_mean_logprob=-50.0, max_mean_entropy=0.1, repetition=None)
    with machine_of({}, watched) as machine:
        assert machine.watch([WatchedToken("a", float("-inf"), [0.0, float("-inf")])]) == "escalated_logprob"
        assert machine.watch([WatchedToken("a", 0.0, [0.0, float("-inf")])]) is None


def test_a_closed_answer_takes_no_event() -> None:
    machine = AnswerMachine(RULES)
    machine.close()
    with pytest.raises(RuntimeError, match="there is no answer"):
        machine.step({"type": "start", "side": "near", "reason": "prefer", "standby": False})
