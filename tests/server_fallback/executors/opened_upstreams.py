"""Executors over fake servers of OpenAI's dialect, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from answers import all_chunks
from fake_openai import FakeOpenAI, running

from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.upstream_executor import UpstreamExecutor, UpstreamOptions, open_upstream
from nearfar.server_fallback.schema.chat import ChatCompletionChunk, ChatCompletionRequest

QUESTION = ChatCompletionRequest.model_validate({"model": "ours", "messages": [{"role": "user", "content": "hi"}]})


@asynccontextmanager
async def opened(*servers: FakeOpenAI, **options: Any) -> AsyncIterator[UpstreamExecutor]:
    async with running(*servers):
        urls = tuple(server.url for server in servers)
        executor = await open_upstream(UpstreamOptions(urls=urls, name="ours", **options))
        try:
            yield executor
        finally:
            await executor.close()


def with_upstream(test: Callable[[UpstreamExecutor], Awaitable[None]], *servers: FakeOpenAI, **options: Any) -> None:
    async def run() -> None:
        async with opened(*servers, **options) as executor:
            await test(executor)

    asyncio.run(run())


async def ask(
    executor: UpstreamExecutor, call: Call | None = None, question: ChatCompletionRequest = QUESTION
) -> list[ChatCompletionChunk]:
    return await all_chunks(executor, question, call or Call("r1"))


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for each in chunks for choice in each.choices)
