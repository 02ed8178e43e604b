"""Answers as JSON, key by key as OpenAI writes them: some nulls belong there, others do not."""

from __future__ import annotations

import json
from typing import Any

from ..schema.chat import ChatCompletion, ChatCompletionChunk
from ..schema.completions import Completion, CompletionChunk


def chat_json(answer: ChatCompletion) -> bytes:
    value = answer.model_dump(mode="json")
    for choice in value["choices"]:
        for key in ("tool_calls", "reasoning_content"):
            if choice["message"][key] is None:
                del choice["message"][key]
    return _json(value)


def chat_chunk_json(chunk: ChatCompletionChunk, include_usage: bool) -> bytes | None:
    """None where there is nothing to send: the chunk of the usage, where it was not asked for."""
    if not chunk.choices and not include_usage:
        return None
    value = chunk.model_dump(mode="json")
    if not include_usage:
        del value["usage"]
    for choice, given in zip(value["choices"], chunk.choices, strict=True):
        choice["delta"] = given.delta.model_dump(mode="json", exclude_none=True)
    return _json(value)


def completion_json(answer: Completion) -> bytes:
    return _json(answer.model_dump(mode="json"))


def completion_chunk_json(chunk: CompletionChunk, include_usage: bool) -> bytes | None:
    """None like `chat_chunk_json`."""
    if not chunk.choices and not include_usage:
        return None
    value = chunk.model_dump(mode="json")
    if not include_usage:
        del value["usage"]
    return _json(value)


def _json(value: Any) -> bytes:
    """Without a null ``route``, which only pairs of sides have, and without what is null in the usage because only some models know it."""
    if value["route"] is None:
        del value["route"]
    usage = value.get("usage")
    for key in ("queue_ms", "completion_tokens_details"):
        if usage is not None and usage[key] is None:
            del usage[key]
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
