"""An answer of one or several choices: writes its chunks, and adds up the usage."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from ..engine.request import TokenRequest
from ..schema.common import CompletionTokensDetails, PromptTokensDetails, Usage
from .choice import ChoiceEnd, Part


class ChunkSender(Protocol):
    """Sends the chunks of an answer to its output."""

    def begin(self) -> None: ...

    def add(self, index: int, item: Part) -> None:
        """Send the chunks of a part of the choice ``index``."""

    def end(self) -> None:
        """Send the chunk with the usage, after the ends of all choices."""


async def all_choices(choices: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run the choices of an answer. If one fails or this is cancelled, all end."""
    if len(choices) == 1:
        await choices[0]
        return
    tasks = [asyncio.ensure_future(choice) for choice in choices]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def usage_of(requests: Sequence[TokenRequest], ends: Sequence[ChoiceEnd], n: int) -> Usage:
    """Each prompt has ``n`` consecutive answers that share its tokens, so only the first of them counts the prompt."""
    prompt_tokens = sum(len(request.prompt_ids) for request in requests[::n])
    completion_tokens = sum(end.completion_tokens for end in ends)
    completions = [end.completion for end in ends[::n]]
    cached = [completion.cached_tokens for completion in completions if completion is not None]
    waits = [end.completion.queue_seconds for end in ends if end.completion is not None]
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        # These are unknown if a stop string ended an answer.
        prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(cached))
        if len(cached) == len(completions)
        else None,
        completion_tokens_details=_details(ends),
        queue_ms=round(1000 * max(waits, default=0.0), 3) if len(waits) == len(ends) else None,
    )


def _details(ends: Sequence[ChoiceEnd]) -> CompletionTokensDetails | None:
    """None if no answer reasons, and no drafts were checked."""
    reasoned = [end.reasoning_tokens for end in ends if end.reasoning_tokens is not None]
    completions = [end.completion for end in ends if end.completion is not None]
    drafted = sum(completion.drafted_tokens for completion in completions)
    accepted = sum(completion.accepted_tokens for completion in completions)
    passes = sum(completion.passes for completion in completions)
    sampled = sum(each.completion_tokens + (each.end_token is not None) for each in completions if each.passes > 0)
    if not reasoned and drafted == 0:
        return None
    return CompletionTokensDetails(
        reasoning_tokens=sum(reasoned),
        accepted_prediction_tokens=accepted if drafted > 0 else None,
        rejected_prediction_tokens=drafted - accepted if drafted > 0 else None,
        tokens_per_pass=round(sampled / passes, 3) if drafted > 0 and passes > 0 else None,
    )
