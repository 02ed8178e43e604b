"""Calls an app without a socket: complete answers through httpx, and exchanges that the test controls step by step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from functools import cache
from typing import Any, TypeVar, cast

import httpx
from fake_models import FakeModels
from fastapi import FastAPI
from starlette.types import Message
from waiting import WAIT_SECONDS

from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig

Result = TypeVar("Result")
HI: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run within a limit, so that a hanging test fails."""

    async def limited() -> Result:
        async with asyncio.timeout(WAIT_SECONDS):
            return await work

    return asyncio.run(limited())


def ask(
    method: str,
    path: str,
    body: object = None,
    models: FakeModels | None = None,
    config: ApiConfig | None = None,
    **headers: str,
) -> httpx.Response:
    """Send one request to an app. Underscores in the names of headers stand for dashes. Those without a
    configuration share one app, unless they ask for its metrics: it takes longer to create than most answers.
    """
    if config is not None or "/metrics" in path:
        app = create_app(models or FakeModels(), config or ApiConfig())
    elif models is None:
        app = plain_app()
    else:
        app, current = _app_of_any()
        current.models = models
    return run(ask_app(app, method, path, body, **headers))


class _Current:
    """Stands for the models of the request that is asked next."""

    models: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.models, name)


@cache
def _app_of_any() -> tuple[FastAPI, _Current]:
    current = _Current()
    return create_app(cast("Any", current), ApiConfig()), current


@cache
def plain_app() -> FastAPI:
    """An app for requests without special needs. It is created once, because that takes longer than most tests."""
    return create_app(FakeModels(), ApiConfig())


def ask_of(executor: Any, path: str, body: object = None, method: str = "POST") -> httpx.Response:
    """Send one request to an app whose only model has this executor. All such requests share one app."""
    app, models = _app_of_one()
    models.fake = executor
    return run(ask_app(app, method, path, body))


@cache
def _app_of_one() -> tuple[FastAPI, FakeModels]:
    models = FakeModels()
    return create_app(models, ApiConfig()), models


async def ask_app(app: FastAPI, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        return await client.request(
            method, path, content=content, headers={"content-type": "application/json", **given}
        )


def events(response: httpx.Response) -> list[Any]:
    """The data of a stream's events, parsed except for "[DONE]"."""
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


class Held:
    """A request whose connection the test can close at any time, and whose answer it reads piece by piece."""

    def __init__(self, app: FastAPI, path: str, body: object, headers: Mapping[str, str] | None = None) -> None:
        self.sent: asyncio.Queue[Message] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._body = [json.dumps(body).encode()]
        given = {"content-type": "application/json", "host": "test", **(headers or {})}
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "client": ("127.0.0.1", 5000),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }
        self.task = asyncio.create_task(app(scope, self._receive, self.sent.put))

    def go(self) -> None:
        self._gone.set()

    async def _receive(self) -> Message:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}
