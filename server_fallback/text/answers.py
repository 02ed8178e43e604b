"""An answer of one or several choices: merges their streams, writes its chunks, and adds up the usage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Generic, Protocol

from ..engine.request import PromptLogprobs, TokenRequest
from ..schema.common import CompletionTokensDetails, PromptTokensDetails, Usage
from .choice import ChoiceEnd, Piece
from .writer import Sink, Written, Written_co

# What a choice yields.
Part = PromptLogprobs | Piece | ChoiceEnd
Choice = AsyncGenerator[Part, None]


class Answer(Protocol[Written_co]):
    """Writes the chunks of an answer."""

    def begin(self) -> Sequence[Written_co]: ...

    def add(self, index: int, item: Part) -> Sequence[Written_co]:
        """The chunks of a part of the choice ``index``."""

    def end(self) -> Written_co:
        """The chunk with the usage, after the ends of all choices."""


async def written_answer(answer: Answer[Written], choices: Sequence[Choice]) -> AsyncGenerator[Written, None]:
    """Yield the chunks of an answer. Raises the errors of the choices."""
    for written in answer.begin():
        yield written
    async with aclosing(answer_all(choices)) as items:
        async for index, item in items:
            for written in answer.add(index, item):
                yield written
    yield answer.end()


class PieceSink(Generic[Written]):
    """A `Sink` for the pieces of an answer's only choice."""

    def __init__(self, answer: Answer[Written], sink: Sink[Written]) -> None:
        self._answer, self._sink = answer, sink

    @property
    def is_ready(self) -> bool:
        return self._sink.is_ready

    def send(self, piece: Piece) -> None:
        for written in self._answer.add(0, piece):
            self._sink.send(written)


async def answer_all(choices: Sequence[Choice]) -> AsyncGenerator[tuple[int, Part], None]:
    """Yield what each choice yields, with its index. If one fails or the consumer stops reading, all are closed."""
    if len(choices) == 1:
        async with aclosing(choices[0]) as only:
            async for piece in only:
                yield 0, piece
        return
    events: asyncio.Queue[tuple[int, Part | BaseException]] = asyncio.Queue()
    tasks = [asyncio.create_task(_forward(index, choice, events)) for index, choice in enumerate(choices)]
    try:
        running = len(choices)
        while running:
            index, item = await events.get()
            if isinstance(item, BaseException):
                raise item
            running -= isinstance(item, ChoiceEnd)
            yield index, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(index: int, choice: Choice, events: asyncio.Queue[tuple[int, Part | BaseException]]) -> None:
    try:
        async with aclosing(choice):
            async for item in choice:
                events.put_nowait((index, item))
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        # The reader raises it. A panic of the tokenizers library is not an Exception, and would leave the reader
        # waiting.
        events.put_nowait((index, error))


def usage_of(requests: Sequence[TokenRequest], ends: Sequence[ChoiceEnd], n: int) -> Usage:
    """Each prompt has ``n`` consecutive answers that share its tokens, so only the first of them counts the prompt."""
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
        # These are unknown if a stop string ended an answer.
        prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(cached))
        if len(cached) == len(completions)
        else None,
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=sum(reasoned)) if reasoned else None,
        queue_ms=round(1000 * max(waits, default=0.0), 3) if len(waits) == len(ends) else None,
    )
