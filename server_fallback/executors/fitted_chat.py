"""Answers to chats that may be shortened to fit the model's context, as `truncation` of /v1/responses asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nearfar.compiler.runtime.errors import RequestError

from ..schema.chat import ChatCompletionRequest, Message
from ..schema.completions import AnswerRequest
from ..text.output import Output
from .executor import Call, Executor

OVERFLOW = "context_length_exceeded"
# A prompt that does not fit loses at least this part of its text before it is tried again, so that a long one is not
# rendered hundreds of times.
LEAST_PART = 8


async def answer_fitting(
    executor: Executor, request: AnswerRequest, call: Call, output: Output[Any], *, drops: bool
) -> None:
    """As `Executor.answer`. ``drops``: while a chat does not fit the context, its oldest turns are left out. System
    messages at the beginning stay, and so does the last turn.

    Raises RequestError for a chat that does not fit without them either.
    """
    while True:
        try:
            await executor.answer(request, call, output)
            return
        except RequestError as error:
            # It is raised before anything of the answer.
            too_long = drops and error.details.get("code") == OVERFLOW
            shorter = without_oldest(request.messages) if isinstance(request, ChatCompletionRequest) else None
            if not too_long or shorter is None:
                raise
            request = request.model_copy(update={"messages": shorter})


def without_oldest(messages: Sequence[Message]) -> list[Message] | None:
    """The messages without the oldest turns. A turn begins with a user's message, so that calls stay with their
    results. None if there is one turn.
    """
    first = next((index for index, message in enumerate(messages) if not _is_system(message)), len(messages))
    starts = [index for index in range(first + 1, len(messages)) if messages[index].role == "user"]
    if not starts:
        return None
    least = sum(_size(message) for message in messages[first:]) / LEAST_PART
    dropped = 0
    for start in starts:
        dropped = sum(_size(message) for message in messages[first:start])
        if dropped >= least:
            break
    return [*messages[:first], *messages[start:]]


def _is_system(message: Message) -> bool:
    return message.role in ("system", "developer")


def _size(message: Message) -> int:
    """Characters, roughly. A picture counts as a page of text."""
    calls = sum(len(call.function.arguments) for call in message.tool_calls or ())
    return len(message.text) + calls + 2000 * len(message.images)
