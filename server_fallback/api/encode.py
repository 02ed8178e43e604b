"""Answers as JSON with the keys that OpenAI writes: some keys appear with null, others are left out."""

from __future__ import annotations

import json
from typing import Any

from ..schema.chat import ChatCompletion, ChatCompletionChunk
from ..schema.completions import Completion, CompletionChunk

# What of a chunk or a choice is left out if it is null.
OPTIONAL = ("route", "token_ids", "prompt_token_ids", "prompt_logprobs")


def chat_json(answer: ChatCompletion) -> bytes:
    value = answer.model_dump(mode="json")
    for choice in value["choices"]:
        for key in ("tool_calls", "function_call", "reasoning_content"):
            if choice["message"][key] is None:
                del choice["message"][key]
    return _json(value)


def chat_chunk_json(chunk: ChatCompletionChunk, include_usage: bool) -> bytes | None:
    """None if there is nothing to send: the chunk holds only the usage, which was not requested."""
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
    """None under the same condition as `chat_chunk_json`."""
    if not chunk.choices and not include_usage:
        return None
    value = chunk.model_dump(mode="json")
    if not include_usage:
        del value["usage"]
    return _json(value)


def _json(value: Any) -> bytes:
    """Leave out a null ``route`` and ``nearfar``, which only pairs of sides and pipelines have, null fields that were
    not requested, and the null fields of the usage that only some models report.
    """
    for each in (value, *value["choices"]):
        for key in OPTIONAL:
            if each.get(key) is None:
                each.pop(key, None)
    if (trace := value.get("nearfar")) is None:
        value.pop("nearfar", None)
    elif trace["passages"] is None:
        del trace["passages"]
    usage = value.get("usage")
    for key in ("queue_ms", "completion_tokens_details"):
        if usage is not None and usage[key] is None:
            del usage[key]
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
