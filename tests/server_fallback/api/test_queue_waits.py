"""X-Nearfar-Queue-Ms: the time that a request would currently wait for the device."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

import httpx
import pytest
from asgi import HI, ask_app, run
from fake_models import FakeExecutor, FakeModels

from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.queue_waits import QueueWaits
from nearfar.server_fallback.executors.executor import Call, ExecutorState
from nearfar.server_fallback.schema.about import QUEUE_HEADER
from nearfar.server_fallback.schema.chat import ChatCompletionChunk, ChatCompletionRequest

ABOUT, CHAT, COMPLETIONS = "/v1/nearfar/about", "/v1/chat/completions", "/v1/completions"
IDLE, BUSY = ExecutorState(True, ""), ExecutorState(True, "", waiting=1)


@dataclass
class SilentExecutor(FakeExecutor):
    """Reports nothing about its queue, like other servers."""

    def chat(self, request: ChatCompletionRequest, call: Call) -> AsyncGenerator[ChatCompletionChunk, None]:
        return super().chat(request, replace(call, observe_queue=None))


def test_the_mean_of_the_last_16_waits_is_reported_and_the_longest_of_several_models() -> None:
    waits = QueueWaits()
    assert waits.wait_ms({"a": BUSY}) is None
    for seconds in (100.0, *[0.1] * 8, *[0.3] * 8):
        waits.observe("a", seconds)
    waits.observe("b", 0.0506)
    assert waits.wait_ms({"a": BUSY}) == 200
    assert waits.wait_ms({"a": IDLE}) == 0
    assert waits.wait_ms({"a": IDLE, "b": BUSY}) == 51
    assert waits.wait_ms({"a": BUSY, "b": BUSY, "silent": BUSY}) == 200


@pytest.mark.parametrize(("state", "expected"), [(BUSY, "250"), (IDLE, "0")])
def test_answers_report_the_queue_and_pages_may_read_it(state: ExecutorState, expected: str) -> None:
    async def work() -> list[httpx.Response]:
        app = create_app(FakeModels(FakeExecutor(current=state)), ApiConfig(cors_origins=("https://example.org",)))
        requests = [
            (CHAT, HI),
            (CHAT, {**HI, "stream": True}),
            (COMPLETIONS, {"model": "fake", "prompt": "x", "stream": True}),
            (ABOUT, None),
        ]
        return [
            await ask_app(app, "POST" if body else "GET", path, body, origin="https://example.org")
            for path, body in requests
        ]

    for response in run(work()):
        assert response.headers[QUEUE_HEADER] == expected
        assert QUEUE_HEADER in response.headers["access-control-expose-headers"]


def test_without_a_known_queue_no_wait_is_reported() -> None:
    async def work() -> list[httpx.Response]:
        app = create_app(FakeModels(SilentExecutor(current=BUSY)), ApiConfig())
        return [await ask_app(app, "POST", CHAT, HI), await ask_app(app, "GET", ABOUT)]

    for response in run(work()):
        assert response.is_success
        assert QUEUE_HEADER not in response.headers
