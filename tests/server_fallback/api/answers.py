"""Answers of executors, whole or chunk by chunk, and executors that generate chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any

from nearfar.server_fallback.executors.executor import Call, Executor
from nearfar.server_fallback.schema.completions import AnswerRequest, CompletionRequest
from nearfar.server_fallback.schema.fold import ChatFold, CompletionFold
from nearfar.server_fallback.text.output import Output, folded, streamed


def chunks_of(executor: Any, request: AnswerRequest, call: Call) -> AsyncGenerator[Any, None]:
    """``executor`` is an `Executor`. Its chunks, of which the reader may leave the rest."""
    answering: Executor = executor
    return streamed(partial(answering.answer, request, call))


async def all_chunks(executor: Any, request: AnswerRequest, call: Call) -> list[Any]:
    async with aclosing(chunks_of(executor, request, call)) as chunks:
        return [chunk async for chunk in chunks]


async def whole(executor: Any, request: AnswerRequest, call: Call) -> Any:
    """A ChatCompletion or a Completion."""
    if isinstance(request, CompletionRequest):
        return await folded(partial(executor.answer, request, call), CompletionFold())
    return await folded(partial(executor.answer, request, call), ChatFold())


def fold_chat(chunks: Iterable[Any]) -> Any:
    fold = ChatFold()
    for chunk in chunks:
        fold.add(chunk)
    return fold.answer()


def fold_completion(chunks: Iterable[Any]) -> Any:
    fold = CompletionFold()
    for chunk in chunks:
        fold.add(chunk)
    return fold.answer()


class Generating:
    """An executor's `answer` from its generators of chunks, ``chat`` and ``complete``."""

    async def answer(self: Any, request: AnswerRequest, call: Call, output: Output[Any]) -> None:
        generate = self.complete if isinstance(request, CompletionRequest) else self.chat
        async with aclosing(generate(request, call)) as chunks:
            async for chunk in chunks:
                output.chunk(chunk)
                await output.room()
