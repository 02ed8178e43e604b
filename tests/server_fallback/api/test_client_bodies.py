"""Recorded bodies in which clients send our own answers back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from asgi import ask
from fake_models import FakeExecutor, FakeModels
from fake_source import OPENED, reasoner

from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.executors.dialect import DIALECTS, generation_body
from nearfar.server_fallback.schema.chat import ChatCompletionRequest

SENT: list[dict[str, Any]] = json.loads((Path(__file__).parent / "client_bodies.json").read_text())
KNOWN_KEYS = {"role", "content", "name", "tool_call_id", "tool_calls"}
TURN: dict[str, Any] = {
    "model": "fake",
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello"}],
}


@pytest.mark.parametrize("sent", SENT, ids=[sent["client"] for sent in SENT])
def test_fields_that_clients_send_back_are_accepted_and_never_forwarded(sent: dict[str, Any]) -> None:
    response = ask("POST", "/v1/chat/completions", {**sent["body"], "model": "fake"})
    assert response.status_code == 200, response.text
    request = ChatCompletionRequest.model_validate(sent["body"])
    for dialect in DIALECTS:
        for given, passed in zip(
            request.messages, generation_body(request, "m", dialect, priority=None)["messages"], strict=True
        ):
            assert passed.keys() <= KNOWN_KEYS
            for call in passed.get("tool_calls", ()):
                assert (call.keys(), call["function"].keys()) == ({"id", "type", "function"}, {"name", "arguments"})
            assert passed.get("content") == given.content


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("audio", {"id": "a"}),
        ("reasoning_content", ["because"]),
        ("provider_specific_fields", {"refusal": None, "thinking": [{"text": "because"}]}),
        ("temperament", None),
    ],
)
def test_parameters_that_would_change_the_answer_are_refused_by_name(key: str, value: object) -> None:
    turn, answer = TURN["messages"]
    response = ask("POST", "/v1/chat/completions", {**TURN, "messages": [turn, {**answer, key: value}, turn]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, f"messages[1].{key}")


def test_a_lenient_server_ignores_unknown_keys_and_names_them() -> None:
    models, lenient = FakeModels(), ApiConfig(lenient=True)
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    schema = {"type": "json_schema", "json_schema": {"schema": {"x-mine": 1}, "examples": []}}
    body = {
        **TURN,
        "messages": [{"role": "user", "content": [part], "x": None}],
        "response_format": schema,
        "temprature\n": 1,
    }
    response = ask("POST", "/v1/chat/completions", body, models, lenient)
    assert response.status_code == 200
    named = "temprature?, messages[0].x, messages[0].content[0].cache_control, response_format.json_schema.examples"
    assert response.headers["x-nearfar-ignored"] == named
    [request] = models.fake.requests
    assert isinstance(request, ChatCompletionRequest)
    assert request.model_dump(by_alias=True, exclude_unset=True)["response_format"]["json_schema"] == {
        "schema": {"x-mine": 1}
    }
    many = ask(
        "POST",
        "/v1/completions",
        {"model": "fake", "prompt": [[1], [2]], **{f"k{n}": n for n in range(40)}},
        models,
        lenient,
    )
    assert (many.status_code, many.headers["x-nearfar-ignored"][-11:]) == (200, "and 24 more")
    assert "x-nearfar-ignored" not in ask("POST", "/v1/chat/completions", TURN, models, lenient).headers
    wrong = ask("POST", "/v1/chat/completions", {**TURN, "x": 1, "n": "two"}, models, lenient)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "n")
    assert ask("POST", "/v1/chat/completions", body).status_code == 400


def test_parameters_that_cannot_change_an_answer_are_accepted() -> None:
    models = FakeModels(FakeExecutor())
    harmless = {
        "user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "flex", "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h", "prediction": {"type": "content", "content": "x"}, "modalities": ["text"],
    }  # fmt: skip
    assert ask("POST", "/v1/chat/completions", {**TURN, **harmless}, models).status_code == 200
    request = models.fake.requests[0]
    assert isinstance(request, ChatCompletionRequest)
    assert generation_body(request, "m", "openai", priority=None).keys() == {
        "model",
        "messages",
        "user",
        "stream",
        "stream_options",
    }


def test_a_lenient_server_ignores_what_the_model_lacks_and_names_it(tmp_path: Path) -> None:
    models = FakeModels()
    local, _ = reasoner(tmp_path, "Hm.</think>Yes.", template=OPENED)
    models.fake = cast(Any, local)
    body = {**TURN, "enable_thinking": False, "temprature": 1}
    response = ask("POST", "/v1/chat/completions", body, models, ApiConfig(lenient=True))
    assert (response.status_code, response.headers["x-nearfar-ignored"]) == (200, "temprature, enable_thinking")
    refused = ask("POST", "/v1/chat/completions", {**TURN, "enable_thinking": False}, models)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "enable_thinking")
