"""Another form of the API over the same models: its own requests, events, ends and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from asgi import ask_app, run
from fake_models import FakeExecutor, FakeModels
from pydantic import BaseModel

from nearfar.compiler.runtime.errors import DeviceError
from nearfar.server_fallback.api import app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.errors import ApiError
from nearfar.server_fallback.api.generation import Kind
from nearfar.server_fallback.api.sse import EventForm
from nearfar.server_fallback.schema.chat import ChatCompletionChunk, ChatCompletionRequest

PATH = "/v1/say"


class Say(BaseModel):
    model: str
    text: str
    streams: bool = False


class Said(BaseModel):
    text: str


class SaidFold:
    def __init__(self) -> None:
        self._texts = list[str]()

    def add(self, chunk: ChatCompletionChunk) -> None:
        self._texts += [choice.delta.content or "" for choice in chunk.choices]

    def answer(self) -> Said:
        return Said(text="".join(self._texts))


def read(body: Say) -> ChatCompletionRequest:
    messages = [{"role": "user", "content": body.text}]
    return ChatCompletionRequest.model_validate({"model": body.model, "messages": messages, "stream": body.streams})


def encode(_: Say) -> Callable[[ChatCompletionChunk], bytes | None]:
    def event(chunk: ChatCompletionChunk) -> bytes | None:
        text = "".join(choice.delta.content or "" for choice in chunk.choices)
        return f"event: said\ndata: {json.dumps(text)}\n\n".encode() if text else None

    return event


def say_error(error: ApiError) -> bytes:
    return json.dumps({"type": "error", "what": error.message}).encode()


SAY: Kind[Say, ChatCompletionChunk, Said] = Kind(
    PATH,
    Say,
    Say,
    Said,
    read,
    encode,
    lambda _: SaidFold(),
    lambda said: said.model_dump_json().encode(),
    EventForm(done=b"event: over\n\n", error=lambda error: b"event: error\ndata: " + error + b"\n\n"),
    say_error,
    alike=False,
)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "KINDS", (*app.KINDS, SAY))
    monkeypatch.setattr(app, "ERROR_FORMS", ((PATH, say_error), *app.ERROR_FORMS))


def ask(fake: FakeExecutor, method: str = "POST", **body: Any) -> tuple[int, str]:
    models = FakeModels(fake)
    response = run(ask_app(app.create_app(models, ApiConfig()), method, PATH, {"model": "fake", "text": "hi", **body}))
    return response.status_code, response.text


def test_an_answer_and_its_events_have_this_form_and_nothing_of_openais() -> None:
    assert ask(FakeExecutor()) == (200, '{"text":"Hello!"}')
    said = "".join(f'event: said\ndata: "{text}"\n\n' for text in ("Hel", "lo", "!"))
    assert ask(FakeExecutor(), streams=True) == (200, said + "event: over\n\n")


def test_errors_have_this_form_before_and_in_a_stream_and_without_a_handler() -> None:
    broken = FakeExecutor(error=DeviceError("broken"), error_at=1)
    error = '{"type": "error", "what": "broken"}'
    assert ask(broken) == (500, error)
    assert ask(broken, streams=True) == (200, f'event: said\ndata: "Hel"\n\nevent: error\ndata: {error}\n\n')
    for status, given in ((400, {"text": 7}), (404, {"model": "nobody"})):
        found, text = ask(FakeExecutor(), **given)
        assert found == status
        assert json.loads(text).keys() == {"type", "what"}
    status, text = ask(FakeExecutor(), "GET")
    assert status == 405
    assert json.loads(text)["type"] == "error"
