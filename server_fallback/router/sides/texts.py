"""What of a request a decision sees: its messages and labels, and every other text that would leave with it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...schema.chat import AnswerToolCall, ChatCompletionRequest, ToolCall
from ...schema.common import GenerationRequest
from ...text.response_format import structured_outputs
from ..decision.situation import Message

# What only claims to be base64 is a text.
_BEFORE_BYTES = re.compile(r"data:[^,]*;base64,(?=[A-Za-z0-9+/]*={0,2}\Z)")


def messages_of(request: ChatCompletionRequest) -> tuple[Message, ...]:
    return tuple(Message(each.role, each.text, tuple(getattr(each, "labels", None) or ())) for each in request.messages)


def conversation_of(request: GenerationRequest, messages: Sequence[Message]) -> tuple[Message, ...]:
    """``messages``, which are those of the request, as a `PrefixMemory` compares them: with their tool calls."""
    if not isinstance(request, ChatCompletionRequest):
        return tuple(messages)
    pairs = zip(messages, request.messages, strict=True)
    return tuple(replace(message, content=with_calls(message.content, each.tool_calls or ())) for message, each in pairs)


def with_calls(text: str, calls: Sequence[ToolCall | AnswerToolCall]) -> str:
    """A message's text and, as JSON, its tool calls."""
    return text + json.dumps([call.model_dump() for call in calls], ensure_ascii=False, separators=(",", ":")) if calls else text


def other_texts(request: GenerationRequest) -> tuple[str, ...]:
    """Images' URLs, names, tools, calls, forms, template variables, stop strings: all that the client wrote beside messages' texts."""
    found = [*stops(request), *([request.user] if request.user is not None else [])]
    for _, form in structured_outputs(request):
        found += strings(form.model_dump(by_alias=True, exclude_none=True))
        found += within_json(form.json_) if isinstance(form.json_, str) else ()
    if isinstance(request, ChatCompletionRequest):
        for message in request.messages:
            found += [text for text in (message.name, message.tool_call_id, message.refusal) if text is not None]
            for part in message.images:
                found += strings({**part.image_url.model_dump(exclude_none=True), "url": without_bytes(part.image_url.url)})
            for call in message.tool_calls or ():
                found += [call.id, call.function.name, call.function.arguments, *within_json(call.function.arguments)]
        for tool in request.tools or ():
            found += strings(tool.model_dump(by_alias=True)["function"])
        found += strings(request.chat_template_kwargs or {})
        if request.response_format is not None:
            found += strings(request.response_format.model_dump(by_alias=True))
    return tuple(found)


def without_bytes(url: str) -> str:
    """The URL of an image without the bytes that it holds in base64, in which a pattern is found by chance alone."""
    head = _BEFORE_BYTES.match(url)
    return url if head is None else head.group()


def stops(request: GenerationRequest) -> list[str]:
    return [request.stop] if isinstance(request.stop, str) else list(request.stop or ())


def strings(value: Any) -> Iterator[str]:
    """All texts in a JSON value, the keys of its objects too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from strings(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        # A number can be as private as its digits.
        yield str(value)


def within_json(text: str) -> Iterable[str]:
    """The texts as they are meant, where JSON escapes them; nothing of what is no JSON."""
    try:
        return list(strings(json.loads(text)))
    except (ValueError, RecursionError):
        return ()
