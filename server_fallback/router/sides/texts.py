"""The texts of a request that a decision reads: its messages with their labels, and every other text that would leave
the device with it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from pydantic import BaseModel

from ...schema.chat import AnswerToolCall, ChatCompletionRequest
from ...schema.common import GenerationRequest
from ...schema.functions import ToolCall
from ..decision.private_texts import request_texts
from ..decision.situation import Message


def texts_of(request: BaseModel) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """The messages of a request, and every text of it that meets no other in the prompt, as `request_texts` finds them.

    It may take long, so call it in a thread.
    """
    messages = request.messages if isinstance(request, ChatCompletionRequest) else ()
    dumped = request.model_dump(by_alias=True, exclude_none=True)
    parts, texts = request_texts(dumped, [each.text for each in messages])
    return tuple(
        Message(each.role, each.text, tuple(getattr(each, "labels", None) or ()), tuple(own))
        for each, own in zip(messages, parts, strict=True)
    ), tuple(texts)


def conversation_of(request: GenerationRequest, messages: Sequence[Message]) -> tuple[Message, ...]:
    """``messages``, which are those of the request, with their tool calls, as a `PrefixMemory` compares them."""
    if not isinstance(request, ChatCompletionRequest):
        return tuple(messages)
    pairs = zip(messages, request.messages, strict=True)
    return tuple(
        replace(message, content=with_calls(message.content, each.tool_calls or ())) for message, each in pairs
    )


def with_calls(text: str, calls: Sequence[ToolCall | AnswerToolCall]) -> str:
    """A message's text followed by its tool calls as JSON."""
    return (
        text + json.dumps([call.model_dump() for call in calls], ensure_ascii=False, separators=(",", ":"))
        if calls
        else text
    )
