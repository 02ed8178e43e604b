"""The texts of a request that a decision reads: its messages with their labels, and every other text that would leave
the device with it. `web/src/shared/decision/private_texts.ts` defines and finds those that a person or a program wrote.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel

from nearfar.compiler.shared.script import SharedScript

from ...schema.chat import AnswerToolCall, ChatCompletionRequest, FilePart
from ...schema.common import GenerationRequest
from ...schema.functions import ToolCall
from ...text.attachments import with_files
from ..decision.situation import Media, Message, Situation

ChatT = TypeVar("ChatT", bound=ChatCompletionRequest)


def with_file_texts(request: ChatT) -> tuple[ChatT, tuple[Media, ...]]:
    """The request with the texts of its files, in which private patterns are searched, and which any side reads; and
    these files.

    It may take long, so call it in a thread. Raises RequestError for too many files.
    """
    messages = list(with_files(request.messages, keep_others=True))
    pairs = enumerate(zip(request.messages, messages, strict=True))
    media = tuple(
        Media("text", index, at)
        for index, (given, read) in pairs
        if isinstance(given.content, list) and isinstance(read.content, list)
        for at, (before, after) in enumerate(zip(given.content, read.content, strict=True))
        if isinstance(before, FilePart) and not isinstance(after, FilePart)
    )
    return request.model_copy(update={"messages": messages}), media


def texts_of(request: BaseModel) -> tuple[tuple[Message, ...], tuple[str, ...], tuple[Media, ...]]:
    """The messages of a request, every text of it that meets no other in the prompt, and its media, as `request_texts`
    finds them.

    It may take long, so call it in a thread.
    """
    messages = request.messages if isinstance(request, ChatCompletionRequest) else ()
    dumped = request.model_dump(by_alias=True, exclude_none=True)
    parts, texts, media = request_texts(dumped, [each.text for each in messages])
    written = tuple(
        Message(each.role, each.text, tuple(getattr(each, "labels", None) or ()), tuple(own))
        for each, own in zip(messages, parts, strict=True)
    )
    return written, tuple(texts), tuple(Media(**each) for each in media)


def with_texts_of(situation: Situation, request: BaseModel) -> Situation:
    """A situation with the texts and media of a request whose messages are in the places of its own. It may take long,
    so call it in a thread.
    """
    messages, texts, media = texts_of(request)
    pairs = zip(messages, situation.messages, strict=True)
    labelled = tuple(replace(message, labels=before.labels) for message, before in pairs)
    return replace(situation, messages=labelled, texts=texts, media=media)


class RequestTexts(NamedTuple):
    """``parts``: the texts of each message in the order of the prompt; none if its content is all of them. ``texts``:
    all others, which meet no text of a prompt. ``media``: what is not text.
    """

    parts: list[list[str]]
    texts: list[str]
    media: list[dict[str, Any]]


def request_texts(request: Mapping[str, Any], contents: Sequence[str]) -> RequestTexts:
    """The texts of a request whose messages have these ``contents``."""
    try:
        written = json.dumps(request, allow_nan=False)
    except ValueError:
        written = json.dumps(_finite(request), allow_nan=False)
    return RequestTexts(**SharedScript.of_thread().ask_text("privateTexts", written, json.dumps(contents)))


def _finite(value: Any) -> Any:
    """A value with the text of each number that is not finite, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


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
