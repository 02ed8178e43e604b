"""Several answers at once: the pieces of all of them flow out as they come, and at the end what they cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from ..engine.request import TokenRequest
from ..schema.common import CompletionTokensDetails, PromptTokensDetails, Usage
from .choice import ChoiceEnd, Piece

Choice = AsyncGenerator[Piece | ChoiceEnd, None]


async def answer_all(choices: Sequence[Choice]) -> AsyncGenerator[tuple[int, Piece | ChoiceEnd], None]:
    """What each choice yields, with its index. When one fails, or the consumer leaves, all of them are closed."""
    if len(choices) == 1:
        async with aclosing(choices[0]) as only:
            async for piece in only:
                yield 0, piece
        return
    news: asyncio.Queue[tuple[int, Piece | ChoiceEnd | BaseException]] = asyncio.Queue()
    tasks = [asyncio.create_task(_forward(index, choice, news)) for index, choice in enumerate(choices)]
    try:
        running = len(choices)
        while running:
            index, item = await news.get()
            if isinstance(item, BaseException):
                raise item
            running -= isinstance(item, ChoiceEnd)
            yield index, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(
    index: int, choice: Choice, news: asyncio.Queue[tuple[int, Piece | ChoiceEnd | BaseException]]
) -> None:
    try:
        async with aclosing(choice):
            async for item in choice:
                news.put_nowait((index, item))
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        # It is raised where the answers are read. A panic of tokenizers is no Exception, and would leave the reader waiting.
        news.put_nowait((index, error))


def usage_of(requests: Sequence[TokenRequest], ends: Sequence[ChoiceEnd], n: int) -> Usage:
    """Each prompt has ``n`` answers that follow each other and share its tokens, so the first of them speaks for all."""
    prompt_tokens = sum(len(request.prompt_ids) for request in requests[::n])
    completion_tokens = sum(end.completion_tokens for end in ends)
    completions = [end.completion for end in ends[::n]]
    cached = [completion.cached_tokens for completion in completions if completion is not None]
    reasoned = [end.reasoning_tokens for end in ends if end.reasoning_tokens is not None]
    waits = [end.completion.queue_seconds for end in ends if end.completion is not None]
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        # Neither is known where a stop string ended an answer.
        prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(cached))
        if len(cached) == len(completions)
        else None,
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=sum(reasoned)) if reasoned else None,
        queue_ms=round(1000 * max(waits, default=0.0), 3) if len(waits) == len(ends) else None,
    )
