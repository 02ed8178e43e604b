"""Relayed streams of another server: the client, the metrics and the log see the events inside of blocks."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from asgi import HI, Held, ask_app, run
from fake_models import FakeModels
from fake_openai import USAGE, FakeOpenAI, Reply, chunk, running, text_chunks
from fastapi import FastAPI
from waiting import until

from nearfar.server_fallback.api import sse
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.executors.upstream_executor import UpstreamExecutor, UpstreamOptions, open_upstream

STREAM: dict[str, Any] = {**HI, "stream": True}


def with_app(
    test: Callable[[FastAPI, UpstreamExecutor], Awaitable[None]], reply: Reply, server: FakeOpenAI | None = None
) -> None:
    server = server or FakeOpenAI()
    server.reply = lambda _: reply

    async def work() -> None:
        async with running(server):
            executor = await open_upstream(UpstreamOptions(urls=(server.url,), name="fake"))
            models: Any = FakeModels(executor)  # type: ignore[arg-type]
            try:
                await test(create_app(models, ApiConfig()), executor)
            finally:
                await executor.close()

    run(work())


def data_of(body: str) -> list[Any]:
    return [json.loads(event.removeprefix("data: ")) for event in body.split("\n\n")[:-2]]


async def metric(app: FastAPI, name: str) -> float:
    lines = (await ask_app(app, "GET", "/metrics")).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0] == name)


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_has_our_name_and_the_usage_only_if_requested(usage: bool) -> None:
    async def check(app: FastAPI, _: UpstreamExecutor) -> None:
        body = {**STREAM, "stream_options": {"include_usage": usage}}
        response = await ask_app(app, "POST", "/v1/chat/completions", body)
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.text.endswith("\n\ndata: [DONE]\n\n")
        values = data_of(response.text)
        deltas = [choice["delta"].get("content") or "" for value in values for choice in value["choices"]]
        assert ("".join(deltas), {value["model"] for value in values}) == ("abcd" * 10, {"fake"})
        assert [value["choices"] for value in values].count([]) == int(usage)
        assert all(("usage" in value) == usage for value in values)
        assert await metric(app, "vllm:prompt_tokens_total") == 3
        assert await metric(app, "vllm:generation_tokens_total") == 2
        assert await metric(app, "vllm:time_to_first_token_seconds_count") == 1
        assert await metric(app, "vllm:e2e_request_latency_seconds_count") == 1
        assert 'finished_reason="stop"' in (await ask_app(app, "GET", "/metrics")).text

    with_app(check, Reply(chunks=text_chunks(*("abcd" * 10), usage=USAGE)))


def test_completions_stream_too() -> None:
    def part(text: str, end: str | None = None) -> dict[str, Any]:
        choices = [{"index": 0, "text": text, "finish_reason": end}]
        return {"id": "c", "object": "text_completion", "created": 1, "model": "there", "choices": choices}

    async def check(app: FastAPI, _: UpstreamExecutor) -> None:
        body = {"model": "fake", "prompt": "a", "stream": True}
        response = await ask_app(app, "POST", "/v1/completions", body)
        assert "".join(value["choices"][0]["text"] for value in data_of(response.text)) == "xyz"

    with_app(check, Reply(chunks=[part("x"), part("y"), part("z"), part("", "stop")]))


def test_a_failure_before_the_first_text_has_its_status_and_a_later_one_is_an_event_without_done() -> None:
    error = {"error": {"message": "out of memory", "code": 500}}

    async def early(app: FastAPI, _: UpstreamExecutor) -> None:
        response = await ask_app(app, "POST", "/v1/chat/completions", STREAM)
        assert (response.status_code, response.json()["error"]["code"]) == (500, "device_error")
        assert await metric(app, "vllm:e2e_request_latency_seconds_count") == 0

    async def late(app: FastAPI, _: UpstreamExecutor) -> None:
        response = await ask_app(app, "POST", "/v1/chat/completions", STREAM)
        assert response.status_code == 200
        *events, last = response.text.split("\n\n")[:-1]
        assert [json.loads(event[6:])["choices"][0]["delta"].get("content") for event in events] == [None, "a", "b"]
        assert "out of memory" in json.loads(last.removeprefix("data: "))["error"]["message"]
        assert 'finished_reason="error"' in (await ask_app(app, "GET", "/metrics")).text

    with_app(early, Reply(chunks=[chunk(role="assistant"), error]))
    with_app(late, Reply(chunks=[chunk(role="assistant"), chunk("a"), chunk("b"), error]))
    with_app(late_break, Reply(chunks=text_chunks(*"abcd"), breaks_after=3))


async def late_break(app: FastAPI, _: UpstreamExecutor) -> None:
    response = await ask_app(app, "POST", "/v1/chat/completions", STREAM)
    assert "[DONE]" not in response.text
    assert response.text.split("\n\n")[-2].startswith('data: {"error":{"message":"http://127.0.0.1:')


def test_a_client_that_leaves_ends_the_upstreams_answer() -> None:
    async def check(app: FastAPI, executor: UpstreamExecutor) -> None:
        held = Held(app, "/v1/chat/completions", STREAM)
        head, first = [await held.sent.get() for _ in range(2)]
        assert (head["status"], first["body"].endswith(b"\n\n")) == (200, True)
        assert executor.state().running == 1
        held.go()
        await held.task
        assert executor.state().running == 0
        assert await metric(app, "vllm:request_success_total") == 1
        await until(lambda: server.hung_up == 1)

    server = FakeOpenAI()
    with_app(check, Reply(chunks=text_chunks(*"abcdefgh" * 9), seconds_between=0.02), server=server)


def test_a_deadline_ends_the_stream_with_an_error_and_comments_fill_the_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.02)

    async def check(app: FastAPI, _: UpstreamExecutor) -> None:
        held = Held(app, "/v1/chat/completions", STREAM, {"x-request-timeout-ms": "20000"})
        sent = b""
        await held.task
        while not held.sent.empty():
            sent += held.sent.get_nowait().get("body", b"")
        assert sent.count(b": keep-alive\n\n") >= 2
        assert json.loads(sent.split(b"\n\n")[-2][6:])["error"]["code"] == "deadline_exceeded"

    with_app(check, Reply(chunks=text_chunks("a", "b"), hangs_at=2))
