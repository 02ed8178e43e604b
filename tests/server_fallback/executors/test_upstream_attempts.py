"""The number of attempts of a request, their times, and their servers."""

from __future__ import annotations

import asyncio
import random
from time import monotonic

import pytest
from fake_openai import MODEL, FakeOpenAI, Reply, running, text_chunks
from opened_upstreams import ask, text_of, with_upstream
from waiting import until

from nearfar.compiler.runtime.errors import DeadlineExceeded, Unavailable
from nearfar.server_fallback.executors import circuit, upstream_executor
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.upstream_executor import UpstreamExecutor, UpstreamOptions, open_upstream
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.schema.embeddings import EmbeddingRequest

LONG = ChatCompletionRequest.model_validate(
    {"model": "ours", "messages": [{"role": "user", "content": "once upon a time " * 400}]}
)
EMBEDDED = {
    "object": "list",
    "model": MODEL,
    "data": [{"index": 0, "embedding": [0.5]}],
    "usage": {"prompt_tokens": 1, "total_tokens": 1},
}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_executor, "RETRY_SECONDS", 0.001)


def test_another_attempt_goes_to_another_server_even_if_the_first_has_the_prompt() -> None:
    servers = [FakeOpenAI(), FakeOpenAI()]

    async def check(executor: UpstreamExecutor) -> None:
        await ask(executor, question=LONG)
        first, other = sorted(servers, key=lambda server: -len(server.received))
        first.reply = lambda _: Reply(503, {})
        assert text_of(await ask(executor, question=LONG)) == "hi"
        assert (len(first.received), len(other.received)) == (2, 1)

    with_upstream(check, *servers)


def test_embeddings_are_requested_again_from_another_server() -> None:
    servers = [FakeOpenAI(lambda _: Reply(503, {})), FakeOpenAI(lambda _: Reply(value=EMBEDDED))]

    async def check(executor: UpstreamExecutor) -> None:
        for _ in range(2):
            # The broken server is always the one that was chosen longest ago.
            embedded = await executor.embed(EmbeddingRequest(model="ours", input="a"), Call("r"))
            assert embedded.data[0].embedding == [0.5]

    with_upstream(check, *servers)
    assert [len(server.received) for server in servers] == [2, 2]


def test_the_wait_doubles_from_attempt_to_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(upstream_executor, "RETRY_SECONDS", 100.0)
    monkeypatch.setattr(random, "uniform", lambda least, most: (least + most) / 2)
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        # The other sleeps are those of the fake server and of the checks.
        waits.extend([seconds] if seconds > 50 else [])
        await sleep(0 if seconds > 50 else seconds)

    monkeypatch.setattr(asyncio, "sleep", noted)

    async def check(executor: UpstreamExecutor) -> None:
        with pytest.raises(Unavailable):
            await ask(executor)

    with_upstream(check, FakeOpenAI(lambda _: Reply(503, {})))
    assert waits == [75.0, 150.0]


def test_a_trial_that_is_cancelled_leaves_the_trial_to_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit, "FIRST_WAIT_SECONDS", 0.01)
    server = FakeOpenAI(lambda _: Reply(503, {}))

    async def check(executor: UpstreamExecutor) -> None:
        with pytest.raises(Unavailable):
            await ask(executor)
        assert not executor.state().ready
        await asyncio.sleep(0.02)
        server.reply = lambda _: Reply(hangs=True)
        with pytest.raises(DeadlineExceeded):
            await ask(executor, Call("r", deadline=monotonic() + 0.05))
        server.reply = lambda _: Reply(chunks=text_chunks("hi"))
        assert text_of(await ask(executor)) == "hi"

    with_upstream(check, server)


def test_checks_count_as_failures_if_the_server_answers_with_an_error_and_end_with_the_executor() -> None:
    server = FakeOpenAI()

    async def check(executor: UpstreamExecutor) -> None:
        server.models_status = 500
        await until(lambda: not executor.state().ready)
        await executor.close()
        await asyncio.sleep(0)
        assert executor._checks.done()

    with_upstream(check, server, check_seconds=0.01)


def test_a_model_opens_with_the_first_server_that_answers_and_the_context_that_is_configured() -> None:
    async def check() -> None:
        server, dead = FakeOpenAI(), FakeOpenAI()
        async with running(server, dead):
            await dead.die()
            urls = (dead.url, server.url)
            for configured, context in ((None, 128), (64, 64)):
                executor = await open_upstream(UpstreamOptions(urls=urls, name="ours", context=configured))
                assert executor.context == context
                assert text_of(await ask(executor)) == "hi"
                await executor.close()

    asyncio.run(check())
