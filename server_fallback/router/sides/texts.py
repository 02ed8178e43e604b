"""The texts of a request that a decision reads: its messages with their labels, and every other text that would leave
the device with it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from pydantic import BaseModel

from ...schema.chat import AnswerToolCall, ChatCompletionRequest, TextPart
from ...schema.chat import Message as ChatMessage
from ...schema.common import GenerationRequest
from ...schema.functions import ToolCall
from ..decision.private_texts import private_texts
from ..decision.situation import Message


def messages_of(request: ChatCompletionRequest) -> tuple[Message, ...]:
    return tuple(
        Message(each.role, each.text, tuple(getattr(each, "labels", None) or ()), parts_of(each))
        for each in request.messages
    )


def parts_of(message: ChatMessage) -> tuple[str, ...]:
    """The texts of a message in the order of the prompt, if there are several: the reasoning, then the content's
    parts.
    """
    content = message.content
    parts = content if isinstance(content, list) else ()
    reasoning = [text for text in (message.reasoning_content, message.reasoning) if text is not None]
    texts = [content] if isinstance(content, str) else [part.text for part in parts if isinstance(part, TextPart)]
    return (*reasoning, *texts) if reasoning or parts else ()


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


def other_texts(request: BaseModel) -> tuple[str, ...]:
    """Every text that the client wrote besides the messages' own, as `private_texts` finds them.

    It may take long, so call it in a thread.
    """
    dumped = request.model_dump(by_alias=True, exclude_none=True)
    return tuple(text for kind, text in private_texts(dumped) if kind != "prompt")
