"""`tokens_per_minute` over HTTP: what simultaneous answers may take together."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import pytest
from asgi import HI, ask_app, run
from encoders import ModelsWithEncoders, encoders
from fake_models import FakeExecutor, FakeModels

from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import ApiKey, Keys
from nearfar.server_fallback.api.limiter import Limiter, OwnLimits
from nearfar.server_fallback.api.service import limits_of
from nearfar.server_fallback.executors.executor import Call

CHAT = "/v1/chat/completions"
KEY = {"authorization": "Bearer key-of-web"}


@dataclass
class Expecting(FakeExecutor):
    """Its prompts have 5 tokens, and its answers 3, which begin once ``may_begin`` is set."""

    may_begin: asyncio.Event = field(default_factory=asyncio.Event)

    async def _said(self, request: Any, call: Call) -> AsyncGenerator[str, None]:
        await call.expect(5, request.max_tokens)
        await self.may_begin.wait()
        async for piece in super()._said(request, call):
            yield piece


def app_of(models: FakeModels, tokens: int) -> Any:
    """Its clock stands still."""
    key = ApiKey("web", hashlib.sha256(b"key-of-web").digest(), tokens_per_minute=tokens)
    config = ApiConfig(keys=Keys((key,)))
    return create_app(models, config, limits=OwnLimits(Limiter(*limits_of(config), lambda: 0.0)))


@pytest.mark.parametrize("stream", [False, True])
def test_one_of_two_simultaneous_answers_that_would_exceed_the_limit_together_is_refused(stream: bool) -> None:
    executor = Expecting()
    app = app_of(FakeModels(executor), 100)

    async def answered(most: int) -> Any:
        return await ask_app(app, "POST", CHAT, {**HI, "max_tokens": most, "stream": stream}, **KEY)

    async def work() -> None:
        answers = [asyncio.ensure_future(answered(60)) for _ in range(2)]
        done, running = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        (refused,) = (each.result() for each in done)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert refused.headers["retry-after"] == "1"
        assert "may take 65 tokens" in refused.json()["error"]["message"]
        executor.may_begin.set()
        (first,) = await asyncio.gather(*running)
        assert (first.status_code, remaining(first)) == (200, 35)
        # It has taken 8 of its 65 tokens.
        second = await answered(80)
        assert (second.status_code, remaining(second)) == (200, 7)

    run(work())


def remaining(answer: Any) -> int:
    return int(answer.headers["x-ratelimit-remaining-tokens"])


def test_texts_to_encode_count_before_they_are_computed(tmp_path: Any) -> None:
    app = app_of(ModelsWithEncoders(encoders=encoders(tmp_path)), 10)
    body = {"model": "embed", "input": "abcabc"}
    first = run(ask_app(app, "POST", "/v1/embeddings", body, **KEY))
    assert (first.status_code, first.json()["usage"]["prompt_tokens"]) == (200, 6)
    refused = run(ask_app(app, "POST", "/v1/embeddings", body, **KEY))
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    shorter = run(ask_app(app, "POST", "/v1/embeddings", {**body, "input": "abc"}, **KEY))
    assert shorter.status_code == 200
