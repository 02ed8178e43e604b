"""Answers as JSON with the keys that OpenAI writes: some keys appear with null, others are left out."""

from __future__ import annotations

import json
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any

from ..schema.chat import ChatCompletion, ChatCompletionChunk, ChunkChoice, Delta
from ..schema.completions import Completion, CompletionChoice, CompletionChunk

# What a chunk or a choice has only if the client requested it, and what of it is left out if it is null.
REQUESTED = ("logprobs", "token_ids", "prompt_token_ids", "prompt_logprobs")
OPTIONAL = ("route", *REQUESTED[1:])


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
    text = _only_text(chunk)
    if text is None:
        return _chat_chunk_json(chunk, include_usage)
    around = _around_chat_text(chunk.id, chunk.created, chunk.model, chunk.choices[0].index, include_usage)
    return encode_basestring(text).encode().join(around)


def _chat_chunk_json(chunk: ChatCompletionChunk, include_usage: bool) -> bytes:
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
    text = _only_text(chunk)
    if text is None:
        return _completion_chunk_json(chunk, include_usage)
    around = _around_text(chunk.id, chunk.created, chunk.model, chunk.choices[0].index, include_usage)
    return encode_basestring(text).encode().join(around)


def _completion_chunk_json(chunk: CompletionChunk, include_usage: bool) -> bytes:
    value = chunk.model_dump(mode="json")
    if not include_usage:
        del value["usage"]
    return _json(value)


# --- chunks of text ---
#
# Most chunks are a text, and all else in them is the same for a whole answer. It is encoded once.


def _only_text(chunk: ChatCompletionChunk | CompletionChunk) -> str | None:
    """The text of a chunk that adds nothing else to its answer; None for other chunks."""
    if len(chunk.choices) != 1 or chunk.usage is not None or chunk.route is not None:
        return None
    if isinstance(chunk, ChatCompletionChunk) and chunk.nearfar is not None:
        return None
    [choice] = chunk.choices
    holders = (chunk, choice)
    if choice.finish_reason is not None or any(getattr(each, key, None) for each in holders for key in REQUESTED):
        return None
    if isinstance(choice, CompletionChoice):
        return choice.text
    delta = choice.delta
    alone = (
        delta.role is None
        and delta.reasoning_content is None
        and delta.tool_calls is None
        and delta.function_call is None
    )
    return delta.content if alone else None


@lru_cache(maxsize=1024)
def _around_chat_text(id: str, created: int, model: str, index: int, include_usage: bool) -> tuple[bytes, bytes]:
    """The JSON of a chunk before and after its text."""
    choice = ChunkChoice(index=index, delta=Delta(content=""))
    chunk = ChatCompletionChunk(id=id, created=created, model=model, choices=[choice])
    before, key, after = _chat_chunk_json(chunk, include_usage).rpartition(b'"content":')
    return before + key, after.removeprefix(b'""')


@lru_cache(maxsize=1024)
def _around_text(id: str, created: int, model: str, index: int, include_usage: bool) -> tuple[bytes, bytes]:
    """The JSON of a chunk before and after its text."""
    choice = CompletionChoice(index=index, text="")
    chunk = CompletionChunk(id=id, created=created, model=model, choices=[choice])
    before, key, after = _completion_chunk_json(chunk, include_usage).rpartition(b'"text":')
    return before + key, after.removeprefix(b'""')


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
