"""Requests to a local executor over a fake source, and their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from answers import all_chunks, whole
from fake_source import FakeSource

from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.schema.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionRequest
from nearfar.server_fallback.schema.completions import Completion, CompletionRequest

CALL = Call("1")


HI = [{"role": "user", "content": "hi"}]


IMAGE = {"type": "image_url", "image_url": {"url": "http://here/a.png"}}


FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}


TOOL = {"type": "function", "function": FUNCTION}


Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(work)


def chat_request(**given: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"model": "fake", "messages": HI, **given})


def chat(local: LocalExecutor, call: Call = CALL, **given: Any) -> ChatCompletion:
    answer: ChatCompletion = run(whole(local, chat_request(**given), call))
    return answer


def chunks(local: LocalExecutor, **given: Any) -> list[ChatCompletionChunk]:
    return run(all_chunks(local, chat_request(**given), CALL))


def complete(local: LocalExecutor, **given: Any) -> Completion:
    answer: Completion = run(whole(local, CompletionRequest.model_validate({"model": "fake", **given}), CALL))
    return answer


def prompt_text(source: FakeSource, index: int = 0) -> str:
    return bytes(source.requests[index].prompt_ids).decode()


SAID = {
    "type": "object",
    "properties": {"said": {"type": "string"}},
    "required": ["said"],
    "additionalProperties": False,
}


ANSWER = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SAID}}


STRICT = {"type": "function", "function": {**FUNCTION, "strict": True}}
