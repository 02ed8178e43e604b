"""The answer machine and the watch, against traces that pages share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nearfar.compiler.runtime.errors import NearfarError, QueueFull, RequestError, Unavailable
from nearfar.server_fallback.router.answer.answer_machine import AnswerMachine, WatchedToken
from nearfar.server_fallback.router.answer.failures import side_error
from nearfar.server_fallback.router.decision.policy import Escalation, Policy
from nearfar.server_fallback.router.sides.continued import continues_as_tokens, request_facts, sets_template_variables
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.schema.completions import CompletionRequest

GIVEN = json.loads((Path(__file__).parents[2] / "conformance/router_traces.json").read_text())
CHAT = {
    "private": False,
    "prompt": "chat",
    "format": None,
    "tool_choice": None,
    "continues": False,
    "dialect": "nearfar",
}
RULES = Policy.read(
    {
        "version": 1,
        "mode": "prefer-near",
        "timeouts": {"near_first_token_ms": 900, "far_first_token_ms": 700, "between_tokens_ms": 500},
        "escalation": {"warm": "never"},
    }
).answer_rules(**CHAT)


@contextmanager
def machine_of(
    rules: Mapping[str, Any], watched: Escalation | None = None, max_tokens: int | None = None
) -> Iterator[AnswerMachine]:
    machine = AnswerMachine({**RULES, **rules}, watched, max_tokens)
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
    rules = dict(case["rules"])
    max_tokens = rules.pop("max_tokens", None)
    with machine_of({}, Escalation.model_validate({**NOTHING_WATCHED, **rules}), max_tokens) as machine:
        heard = [(machine.watch([WatchedToken(*token)]), machine.doubts) for token in case["tokens"]]
    assert heard == list(zip(case["reasons"], case["doubts"], strict=True))


def test_the_entropy_of_an_impossible_token_is_zero() -> None:
    watched = Escalation(window_tokens=1, min_mean_logprob=-50.0, max_mean_entropy=0.1, repetition=None)
    with machine_of({}, watched) as machine:
        assert machine.watch([WatchedToken("a", float("-inf"), [0.0, float("-inf")])]) == "escalated_logprob"
        assert machine.watch([WatchedToken("a", 0.0, [0.0, float("-inf")])]) is None


@pytest.mark.parametrize("row", GIVEN["failures"], ids=lambda row: row["name"])
def test_a_failure_is_judged(row: dict[str, Any]) -> None:
    side, retries = row["side"], row["tries"]
    with machine_of({"retries": retries}) as machine:
        machine.step({"type": "start", "side": side, "reason": "prefer", "standby": False})
        for attempt in range(1, retries):
            failed = {"side": side, "attempt": attempt, "kind": "connection", "retryable": True}
            machine.step({"type": "failed", **failed})
        assert machine.failure(side, row["error"], 0.0)._asdict() == row["failure"]


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (
            QueueFull("full", status=429, retry_after_seconds=1.5),
            {"error": "queue_full", "status": 429, "retryable": True, "retry_after_ms": 1500},
        ),
        (Unavailable("gone"), {"error": "unavailable", "retryable": True}),
        (
            RequestError("which?", code="unknown_model", param="model"),
            {"error": "request_error", "code": "unknown_model", "retryable": False},
        ),
    ],
)
def test_a_failure_is_judged_by_what_the_error_says(error: NearfarError, known: dict[str, object]) -> None:
    assert side_error(error) == known


def test_a_side_that_requires_the_longest_wait_is_not_asked_again() -> None:
    with machine_of({"retries": 1}) as machine:
        machine.step({"type": "start", "side": "far", "reason": "prefer", "standby": False})
        failure = machine.failure("far", side_error(QueueFull("full", status=429, retry_after_seconds=1e306)), 0.0)
    assert (failure.kind, failure.retryable) == ("overloaded", False)


@pytest.mark.parametrize("row", GIVEN["fails"], ids=lambda row: row["fail"]["reason"])
def test_an_answer_that_no_side_explains_has_an_error(row: dict[str, Any]) -> None:
    with machine_of({}) as machine:
        error = machine.fail_error(row["fail"])
    assert isinstance(error, Unavailable)
    assert (error.message, error.details["code"]) == (row["message"], row["fail"]["reason"])


@pytest.mark.parametrize("row", GIVEN["continuation"], ids=lambda row: row["name"])
def test_a_continued_chat_is_judged(row: dict[str, Any]) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], **row["params"]}
    request = ChatCompletionRequest.model_validate(body)
    assert (continues_as_tokens(request), sets_template_variables(request)) == (row["tokens"], row["variables"])


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, "text"),
        ({"response_format": {"type": "json_object"}}, "json_object"),
        ({"guided_json": {"type": "object"}}, "json_schema"),
        ({"structured_outputs": {"json_object": True}}, "json_object"),
        ({"guided_regex": "a"}, "structured"),
    ],
)
def test_a_request_s_format_is_a_fact(fields: dict[str, Any], form: str | None) -> None:
    request = CompletionRequest.model_validate({"model": "m", "prompt": "a", **fields})
    assert request_facts(request)["format"] == form


@pytest.mark.parametrize("continues", [True, False, None])
def test_a_beginning_of_the_client_is_a_fact(continues: bool | None) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "{"}]
    body = {"model": "m", "messages": messages, "continue_final_message": continues}
    request = ChatCompletionRequest.model_validate(body)
    assert request_facts(request)["continues"] is continues


def test_a_closed_answer_takes_no_event() -> None:
    machine = AnswerMachine(RULES)
    machine.close()
    with pytest.raises(RuntimeError, match="there is no answer"):
        machine.step({"type": "start", "side": "near", "reason": "prefer", "standby": False})
