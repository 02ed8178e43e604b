"""The texts of a request that a decision reads: its messages with their labels, and every other text that would leave
the device with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...schema.chat import (
    AnswerToolCall,
    ChatCompletionRequest,
    GrammarFormat,
    JsonSchemaFormat,
    NamedToolChoice,
    RegexFormat,
    TextPart,
    ToolCall,
)
from ...schema.chat import Message as ChatMessage
from ...schema.common import GenerationRequest
from ...schema.completions import CompletionRequest
from ...text.response_format import structured_outputs
from ..decision.situation import Message

# A URL that only claims to be base64 is searched as text.
_BEFORE_BYTES = re.compile(r"data:[^,]*;base64,(?=[A-Za-z0-9+/]*={0,2}\Z)")


def messages_of(request: ChatCompletionRequest) -> tuple[Message, ...]:
    return tuple(
        Message(each.role, each.text, tuple(getattr(each, "labels", None) or ()), parts_of(each))
        for each in request.messages
    )


def parts_of(message: ChatMessage) -> tuple[str, ...]:
    """The texts of a message's parts, if its content is a list."""
    return (
        tuple(part.text for part in message.content if isinstance(part, TextPart))
        if isinstance(message.content, list)
        else ()
    )


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


def other_texts(request: GenerationRequest) -> tuple[str, ...]:
    """Images' URLs, names, tools, calls, formats, template variables, stop strings: everything that the client wrote
    besides the messages' texts.

    It may take long, so call it in a thread.
    """
    texts = [*stops(request), *([request.user] if request.user is not None else [])]
    if request.seed is not None:
        texts.append(str(request.seed))
    for _, form in structured_outputs(request):
        texts += strings(form.model_dump(by_alias=True, exclude_none=True))
        texts += within_json(form.json_) if isinstance(form.json_, str) else ()
    if isinstance(request, ChatCompletionRequest):
        for message in request.messages:
            texts += [
                text
                for text in (
                    message.name,
                    message.tool_call_id,
                    message.refusal,
                    message.reasoning_content,
                    message.reasoning,
                )
                if text is not None
            ]
            for part in message.images:
                texts += strings(
                    {**part.image_url.model_dump(exclude_none=True), "url": without_bytes(part.image_url.url)}
                )
            for call in message.tool_calls or ():
                texts += [call.id, call.function.name, call.function.arguments, *within_json(call.function.arguments)]
        for tool in request.tools or ():
            texts += strings([tool.function.name, tool.function.description, tool.function.parameters])
        texts += strings(request.chat_template_kwargs or {})
        if isinstance(request.tool_choice, NamedToolChoice):
            texts.append(request.tool_choice.function.name)
    assert isinstance(request, ChatCompletionRequest | CompletionRequest)
    match request.response_format:
        case JsonSchemaFormat(json_schema=schema):
            texts += strings([schema.name, schema.description, schema.schema_])
        case RegexFormat(pattern=text) | GrammarFormat(grammar=text):
            texts.append(text)
    return tuple(texts)


def without_bytes(url: str) -> str:
    """The URL of an image without its base64 bytes, in which a pattern would match only by chance."""
    head = _BEFORE_BYTES.match(url)
    return url if head is None else head.group()


def stops(request: GenerationRequest) -> list[str]:
    return [request.stop] if isinstance(request.stop, str) else list(request.stop or ())


def strings(value: Any) -> Iterator[str]:
    """All texts in a JSON value of any depth, including the keys of its objects."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            for key, inner in reversed(value.items()):
                pending += [inner, str(key)]
        elif isinstance(value, list | tuple):
            pending += reversed(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            # A number can be as private as its digits.
            yield str(value)


def within_json(text: str) -> Iterable[str]:
    """The texts of a JSON value without their escapes; nothing if it is not JSON.

    The text itself is searched anyway.
    """
    try:
        return strings(json.loads(text))
    except (ValueError, RecursionError):
        return ()
