"""Pauses in a streamed answer: proxies receive comments, which clients ignore."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from asgi import HI, Held, ask_app, run
from fake_models import FakeExecutor, FakeModels
from live_server import live_server

from nearfar.compiler.runtime.errors import DeviceError, QueueFull
from nearfar.server_fallback.api import sse
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.schema.about import QUEUE_HEADER

STREAM: dict[str, Any] = {**HI, "stream": True}
SAY: dict[str, Any] = {"model": "fake", "prompt": "say", "stream": True}
COMMENT = b": keep-alive\n\n"


@pytest.fixture(autouse=True)
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.01)


def test_comments_fill_the_wait_for_the_first_word_and_end_with_who_leaves() -> None:
    async def work() -> None:
        models = FakeModels(FakeExecutor(delay_seconds=30))
        held = Held(create_app(models, ApiConfig()), "/v1/chat/completions", STREAM)
        head, *comments = [await held.sent.get() for _ in range(4)]
        assert head["status"] == 200
        assert QUEUE_HEADER.lower().encode() in dict(head["headers"])
        assert [comment["body"] for comment in comments] == [COMMENT] * 3
        held.go()
        await held.task
        assert (models.fake.open, models.fake.cancelled) == (0, 1)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(work())


def test_an_early_failure_has_its_status_and_one_after_a_comment_is_an_event() -> None:
    async def work() -> None:
        full = await ask_app(
            create_app(FakeModels(FakeExecutor(error=QueueFull("full"))), ApiConfig()), "POST", "/v1/completions", SAY
        )
        assert full.status_code == 429
        late = FakeExecutor(delay_seconds=0.2, pieces=["", "x"], error=DeviceError("lost"), error_at=1)
        response = await ask_app(create_app(FakeModels(late), ApiConfig()), "POST", "/v1/completions", SAY)
        assert response.status_code == 200
        comment, *others, last = response.text.encode().split(b"\n\n")[:-1]
        assert {comment, *others} == {COMMENT.strip()}
        assert b'"code":"device_error"' in last

    run(work())


def test_openais_client_does_not_see_them() -> None:
    models = FakeModels(FakeExecutor(delay_seconds=0.15))
    with (
        live_server(models, ApiConfig()) as live,
        openai.OpenAI(base_url=f"http://127.0.0.1:{live.port}/v1", api_key="none") as client,
    ):
        received: Any = {"model": "fake", "messages": HI["messages"], "stream": True}
        chunks = list(client.chat.completions.create(**received))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello!"
        with client.chat.completions.with_streaming_response.create(**received) as raw:
            assert raw.read().count(COMMENT) >= 3
