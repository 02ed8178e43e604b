"""Chat and text completions: complete, streamed, failing, cancelled by the client."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import UUID

import pytest
from asgi import HI, Held, ask, ask_app, events, run
from fake_models import FakeExecutor, FakeModels

from nearfar.compiler.runtime.errors import (
    BundleError,
    DeadlineExceeded,
    DeviceError,
    NearfarError,
    QueueFull,
    RequestError,
    Unavailable,
)
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import read_keys

STREAM: dict[str, Any] = {**HI, "stream": True}


def test_a_complete_answer_has_openai_s_form() -> None:
    response = ask("POST", "/v1/chat/completions", HI)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello!", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }


def test_streamed_pieces_are_openai_s_chunks() -> None:
    response = ask("POST", "/v1/chat/completions", STREAM)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    first, *rest, last, done = events(response)
    assert first == {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "fake",
        "choices": [
            {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        ],
    }
    assert [chunk["choices"][0]["delta"] for chunk in rest] == [{"content": "Hel"}, {"content": "lo"}, {"content": "!"}]
    assert last["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert done == "[DONE]"


def test_usage_is_sent_last_if_it_is_requested() -> None:
    *chunks, last, done = events(
        ask("POST", "/v1/chat/completions", {**STREAM, "stream_options": {"include_usage": True}})
    )
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 8
    assert done == "[DONE]"


def test_several_choices_and_tool_calls_are_distinguished() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    whole = ask("POST", "/v1/chat/completions", {**HI, "n": 2, "tools": tools}).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1]
    assert whole["choices"][1]["message"]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "Hello!"}}
    ]
    assert whole["choices"][1]["message"]["content"] is None
    streamed = events(ask("POST", "/v1/chat/completions", {**STREAM, "tools": tools}))
    assert streamed[1]["choices"][0]["delta"] == {
        "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "Hel"}}]
    }


def test_text_completions_complete_and_streamed() -> None:
    body = {"model": "fake", "prompt": "Say"}
    whole = ask("POST", "/v1/completions", body).json()
    assert (whole["object"], whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]) == (
        "text_completion",
        "Hello!",
        "length",
    )
    *chunks, done = events(ask("POST", "/v1/completions", {**body, "stream": True}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello!"
    assert all("usage" not in chunk for chunk in chunks)
    assert done == "[DONE]"


ERRORS: list[tuple[Exception, int, str, str | None]] = [
    (
        RequestError("too long", param="messages", code="context_length_exceeded"),
        400,
        "context_length_exceeded",
        "messages",
    ),
    (RequestError("no"), 400, "invalid_value", None),
    (BundleError("torn"), 503, "bundle_error", None),
    (QueueFull("full", retry_after_seconds=2.5), 429, "queue_full", None),
    (DeadlineExceeded("late"), 503, "deadline_exceeded", None),
    (Unavailable("later"), 503, "unavailable", None),
    (DeviceError("lost"), 500, "device_error", None),
    (NearfarError("odd"), 500, "nearfar_error", None),
    (ZeroDivisionError("the secret prompt"), 500, "internal_error", None),
]


@pytest.mark.parametrize(("error", "status", "code", "param"), ERRORS)
@pytest.mark.parametrize("body", [HI, STREAM])
def test_a_failure_before_the_first_word_has_its_status(
    error: Exception, status: int, code: str, param: str | None, body: dict[str, Any]
) -> None:
    response = ask("POST", "/v1/chat/completions", body, FakeModels(FakeExecutor(error=error)))
    assert response.status_code == status
    answer = response.json()["error"]
    assert (answer["code"], answer["param"]) == (code, param)
    assert set(answer) == {"message", "type", "param", "code"}
    assert "secret" not in response.text
    assert ("retry-after" in response.headers) == (status in (429, 503))
    if status == 429:
        assert response.headers["retry-after"] == "3"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_failure_in_mid_stream_is_an_error_event_and_the_end(path: str) -> None:
    body = STREAM if "chat" in path else {"model": "fake", "prompt": "x", "stream": True}
    models = FakeModels(FakeExecutor(error=DeviceError("lost"), error_at=2))
    *chunks, last = events(ask("POST", path, body, models))
    assert "lo" in str(chunks[-1])
    assert last == {"error": {"message": "lost", "type": "server_error", "param": None, "code": "device_error"}}
    assert models.fake.open == 0


def test_limits_of_the_configuration_are_enforced() -> None:
    app = create_app(FakeModels(), ApiConfig(max_choices=4, max_stops=2, max_inputs=2, max_body_bytes=1000))

    def refused(path: str, **body: object) -> tuple[int, str | None]:
        response = run(ask_app(app, "POST", path, {"model": "fake", **body}))
        return response.status_code, response.json()["error"]["param"] if response.status_code != 200 else None

    chat, texts = "/v1/chat/completions", "/v1/completions"
    assert refused(chat, messages=HI["messages"], n=4) == (200, None)
    assert refused(chat, messages=HI["messages"], n=5) == (400, "n")
    assert refused(texts, prompt=["a", "b"], n=2) == (200, None)
    assert refused(texts, prompt=["a", "b"], n=3) == (400, "prompt")
    assert refused(texts, prompt=[1, 2, 3, 4, 5], n=2) == (200, None)
    assert refused(texts, prompt=[]) == (200, None)
    assert refused(chat, messages=HI["messages"], stop=["a", "b", "c"]) == (400, "stop")
    assert refused(chat, messages=HI["messages"], stream_options={}) == (400, "stream_options")
    assert refused("/v1/embeddings", input=["a", "b", "c"]) == (400, "input")
    assert refused(texts, prompt="a" * 1000)[0] == 413


def test_a_full_server_and_a_key_s_limits_are_429() -> None:
    full = ask("POST", "/v1/chat/completions", HI, config=ApiConfig(max_concurrent_requests=0))
    assert (full.status_code, full.json()["error"]["code"]) == (429, "server_full")
    assert full.headers["retry-after"] == "1"


def test_the_deadline_is_the_server_s_or_the_header_s_whichever_is_sooner() -> None:
    async def work() -> None:
        models = FakeModels(FakeExecutor(delay_seconds=30))
        app = create_app(models, ApiConfig(request_timeout_seconds=0.05))
        for body in (HI, STREAM):
            response = await ask_app(app, "POST", "/v1/chat/completions", body)
            assert (response.status_code, response.json()["error"]["code"]) == (503, "deadline_exceeded")
        app = create_app(models, ApiConfig())
        response = await ask_app(app, "POST", "/v1/chat/completions", HI, x_request_timeout_ms="20")
        assert response.status_code == 503
        assert models.fake.calls[-1].deadline is not None
        assert models.fake.calls[-1].deadline < time.monotonic()
        assert (models.fake.open, models.fake.cancelled) == (0, 3)
        for wrong in ("0", "-1", "1.5", "soon", "", "9" * 13):
            response = await ask_app(app, "POST", "/v1/chat/completions", HI, x_request_timeout_ms=wrong)
            assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_header")

    run(work())


def test_a_deadline_in_mid_stream_is_an_error_event() -> None:
    models = FakeModels(FakeExecutor(pieces=["a"] * 1000, delay_seconds=0.01))
    *_, last = events(ask("POST", "/v1/chat/completions", STREAM, models, ApiConfig(request_timeout_seconds=0.1)))
    assert last["error"]["code"] == "deadline_exceeded"
    assert models.fake.open == 0


@pytest.mark.parametrize("body", [HI, STREAM])
def test_a_client_that_leaves_ends_its_answer(body: dict[str, Any]) -> None:
    async def work() -> None:
        models = FakeModels(FakeExecutor(pieces=["a"] * 1000, delay_seconds=0.01))
        app = create_app(models, ApiConfig())
        held = Held(app, "/v1/chat/completions", body)
        while not models.fake.open:
            await asyncio.sleep(0.001)
        if body is STREAM:
            assert (await held.sent.get())["status"] == 200
        held.go()
        await held.task
        assert (models.fake.open, models.fake.cancelled) == (0, 1)
        assert app.state.service.limits.running == 0
        assert b'finished_reason="abort",model_name="fake"} 1.0' in app.state.service.metrics.text()

    run(work())


def test_a_client_that_leaves_before_its_body_arrived_leaves_nothing() -> None:
    async def work() -> None:
        app = create_app(FakeModels(), ApiConfig())
        held = Held(app, "/v1/chat/completions", HI)
        held._body.clear()
        await asyncio.sleep(0)
        held.go()
        await held.task
        assert app.state.service.limits.running == 0

    run(work())


def test_a_priority_is_bounded_by_the_key_s() -> None:
    async def work() -> None:
        models = FakeModels()
        app = create_app(models, ApiConfig(keys=read_keys(None, {"NEARFAR_API_KEYS": "web=sk-web-12345678"})))
        for priority in (None, -3, 7):
            await ask_app(
                app,
                "POST",
                "/v1/chat/completions",
                {**HI, "priority": priority},
                authorization="Bearer sk-web-12345678",
            )
        app = create_app(models, ApiConfig())
        for priority in (None, 7):
            await ask_app(app, "POST", "/v1/chat/completions", {**HI, "priority": priority})
        assert [call.priority for call in models.fake.calls] == [0, -3, 0, 0, 7]

    run(work())


def test_ids_and_traces_are_passed_on() -> None:
    models = FakeModels()
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    response = ask("POST", "/v1/chat/completions", HI, models, x_request_id="my-1", traceparent=traceparent)
    assert response.headers["x-request-id"] == "my-1"
    assert models.fake.calls[0].request_id == "my-1"
    assert models.fake.calls[0].headers == {"traceparent": traceparent}
    made = ask("POST", "/v1/chat/completions", HI, models, x_request_id='bad id"').headers["x-request-id"]
    assert str(UUID(made)) == made
