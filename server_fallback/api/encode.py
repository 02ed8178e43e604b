"""Answers and their chunks as JSON. What of them is always sent, and what is left out, `schema` declares."""

from __future__ import annotations

import json
from typing import Any

from ..schema.chat import ChatCompletion, ChatCompletionChunk
from ..schema.completions import Completion, CompletionChunk


def answer_json(answer: ChatCompletion | Completion) -> bytes:
    return _json(answer.model_dump(mode="json"))


def chunk_json(chunk: ChatCompletionChunk | CompletionChunk, include_usage: bool) -> bytes | None:
    """None if there is nothing to send: the chunk holds only the usage, which was not requested."""
    if not chunk.choices and not include_usage:
        return None
    return _json(chunk.model_dump(mode="json", exclude=None if include_usage else {"usage"}))


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
