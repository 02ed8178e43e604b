"""Answers as events: those of their chunks, in their order, however much room their client has. Most are written
without a chunk, and without a task.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from answers import all_chunks
from fake_openai import USAGE, FakeOpenAI, Reply, chunk, text_chunks
from fake_source import HYBRID, FakeSource, executor, ids, reasoner, text_model
from local_requests import CALL, TOOL, chat_request, run
from opened_upstreams import with_upstream
from streams import FRESH, Encoded, Streamed, always, never, sometimes

from nearfar.compiler.runtime.errors import DeviceError
from nearfar.server_fallback.api.generation import chunk_json
from nearfar.server_fallback.engine.item_queue import ItemQueue
from nearfar.server_fallback.engine.request import (
    AnswerEnd,
    GeneratedToken,
    PromptLogprobs,
    TokenHandler,
    TokenRequest,
)
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.http_transport import Connection
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.upstream_executor import UpstreamExecutor
from nearfar.server_fallback.schema.completions import AnswerRequest, CompletionRequest

TEXT = 'Say "é\n\u2028\\" \U0001f600 and\x00 \x7f.'
CALLED = 'Well. <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
DONE = b"data: [DONE]\n\n"


class Pushing(FakeSource):
    """Puts the tokens of `FakeSource` into a queue, ``per_turn`` at a time."""

    per_turn = 1

    async def batches(
        self, request: TokenRequest, handle: TokenHandler | None = None
    ) -> AsyncGenerator[list[PromptLogprobs | GeneratedToken | AnswerEnd], None]:
        queue = ItemQueue(handle)

        async def push() -> None:
            count = 0
            async for item in self.generate(request):
                queue.put(item)
                count += 1
                if count % self.per_turn == 0:
                    # The reader runs, and waits again.
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)

        task = asyncio.create_task(push())
        try:
            while True:
                items = await queue.next()
                yield items
                if isinstance(items[-1], AnswerEnd):
                    return
        finally:
            task.cancel()


def pushing(folder: Path, text: str, per_turn: int) -> LocalExecutor:
    source = Pushing(ids(text))
    source.per_turn = per_turn
    return LocalExecutor(source, text_model(folder, HYBRID, markers=("<think>", "</think>")))


async def compare(local: LocalExecutor, request: AnswerRequest, write: Any) -> Streamed:
    """The events of an answer are those of its chunks."""
    streamed, encode = Streamed(write), Encoded(write)
    await streamed.read(partial(local.answer, request, CALL))
    chunks = await all_chunks(local, request, CALL)
    written = b"".join(encode(chunk) or b"" for chunk in chunks)
    assert streamed.events == FRESH.sub(b"", written) + DONE
    record = streamed.record
    assert record.texts == [{each.index for each in chunk.choices if each.has_text} for chunk in chunks]
    assert record.ends == [
        {each.index: each.finish_reason for each in chunk.choices if each.finish_reason} for chunk in chunks
    ]
    assert record.usage == chunks[-1].usage
    return streamed


@pytest.mark.parametrize(
    "given",
    [{}, {"n": 3}, {"stop": "and"}, {"logprobs": True, "top_logprobs": 2}, {"tools": [TOOL]}, {"max_tokens": 7}],
    ids=str,
)
def test_a_chats_events_are_those_of_its_chunks(tmp_path: Path, given: dict[str, Any]) -> None:
    for text in (TEXT, CALLED, ""):
        local, _ = executor(tmp_path, text)
        run(compare(local, chat_request(**given), chunk_json))


def test_reasoning_is_written_in_chunks_and_the_content_around_its_text(tmp_path: Path) -> None:
    local, _ = reasoner(tmp_path, "<think>\nHm, é.\n</think>\n\n" + "Yes. " * 20)
    streamed = run(compare(local, chat_request(), chunk_json))
    reasoned = streamed.events.count(b"reasoning_content")
    # In addition, the role, the text that becomes a template, the end and the usage.
    assert streamed.encode.calls == reasoned + 4
    assert streamed.events.count(b"data: ") > reasoned + 50


def test_a_long_answer_needs_no_more_chunks_than_a_short_one(tmp_path: Path) -> None:
    for length in (5, 500):
        local, _ = executor(tmp_path, "x" * length)
        streamed = run(compare(local, chat_request(), chunk_json))
        # The role, the first text, the template, the end and the usage.
        assert (streamed.events.count(b"data: {"), streamed.encode.calls) == (length + 3, 5)


@pytest.mark.parametrize(
    "given", [{}, {"n": 2, "prompt": ["a", "b"]}, {"logprobs": 1}, {"echo": True}, {"stop": ["and"]}, {"max_tokens": 7}]
)
def test_a_completions_events_are_those_of_its_chunks(tmp_path: Path, given: dict[str, Any]) -> None:
    local, _ = executor(tmp_path, TEXT)
    request = CompletionRequest.model_validate({"model": "fake", "prompt": "p", **given})
    streamed = run(compare(local, request, chunk_json))
    if not given:
        assert streamed.encode.calls == 3


@pytest.mark.parametrize(
    "given", [{}, {"n": 2}, {"stop": "and"}, {"logprobs": True}, {"tools": [TOOL]}, {"max_tokens": 7}], ids=str
)
def test_a_client_gets_the_events_of_a_chat_in_their_order(tmp_path: Path, given: dict[str, Any]) -> None:
    async def check(text: str, per_turn: int) -> None:
        local = pushing(tmp_path, text, per_turn)
        found = []
        for rhythm in (never, always, sometimes):
            streamed = Streamed(chunk_json, rhythm)
            await streamed.read(partial(local.answer, chat_request(**given), CALL))
            found.append(streamed)
        assert found[0].direct == 0
        if per_turn == 1 and "n" not in given:
            assert {streamed.events for streamed in found} == {found[0].events}
            assert found[1].direct > found[2].direct > 0
        # Tokens that come together may share an event.
        for index in range(given.get("n", 1)):
            texts = [
                b"".join(re.findall(rb'"index":%d,"delta":{[^}]*content":"([^"\\]*)' % index, streamed.events))
                for streamed in found
            ]
            assert texts[0]
            assert texts[1:] == texts[:1] * 2
        assert [streamed.record.usage for streamed in found[1:]] == [found[0].record.usage] * 2

    for text in (TEXT, CALLED, "<think>\nHm, é.\n</think>\n\nYes."):
        run(check(text, 1))
    run(check("abc" * 10, 3))


def test_a_completion_is_written_without_a_task_too(tmp_path: Path) -> None:
    streamed = Streamed(chunk_json)
    request = CompletionRequest.model_validate({"model": "fake", "prompt": "p"})
    run(streamed.read(partial(pushing(tmp_path, "a" * 20, 1).answer, request, CALL)))
    # The first text comes with the headers, and the usage with the end.
    assert (streamed.events.count(b'"text":"a"'), streamed.direct) == (20, 21)


def test_a_call_that_observes_tokens_gets_each_before_its_text(tmp_path: Path) -> None:
    async def check(per_turn: int) -> None:
        observed = list[int]()
        call = Call("r", observe_token=observed.append)
        chunks = await all_chunks(pushing(tmp_path, "abc", per_turn), chat_request(), call)
        assert bytes(observed) == b"abc"
        # Texts of several tokens are not joined.
        assert [choice.delta.content for chunk in chunks for choice in chunk.choices][1:-1] == ["a", "b", "c"]

    run(check(1))
    run(check(3))


def test_a_queue_calls_its_handler_only_while_its_reader_waits() -> None:
    async def check() -> None:
        handled = list[int]()

        def handle(token: GeneratedToken) -> bool:
            handled.append(token.token_id)
            return True

        queue = ItemQueue(handle)
        queue.put(GeneratedToken(1))
        assert await queue.next() == [GeneratedToken(1)]
        reader = asyncio.create_task(queue.next())
        await asyncio.sleep(0)
        queue.put(GeneratedToken(2))
        assert handled == [2]
        # The reader has been cancelled, but has not run since.
        reader.cancel()
        queue.put(GeneratedToken(3))
        assert handled == [2]
        assert await queue.next() == [GeneratedToken(3)]

    asyncio.run(check())


def test_an_error_of_the_handler_ends_the_answer_of_its_reader() -> None:
    def fail(_: GeneratedToken) -> bool:
        raise DeviceError("no")

    async def check() -> None:
        queue = ItemQueue(fail)
        reader = asyncio.create_task(queue.next())
        await asyncio.sleep(0)
        queue.put(GeneratedToken(1))
        with pytest.raises(DeviceError, match="no"):
            await reader

    asyncio.run(check())


# --- another server's answers ---


async def relayed(executor: UpstreamExecutor, streamed: Streamed, **given: Any) -> None:
    await streamed.read(partial(executor.answer, chat_request(**given), Call("r")))


@pytest.mark.parametrize("seconds_between", [0.0, 0.005])
@pytest.mark.parametrize("given", [{}, {"max_tokens": 9}])
def test_a_client_gets_the_events_of_another_server_in_their_order(
    seconds_between: float, given: dict[str, Any]
) -> None:
    async def check(executor: UpstreamExecutor) -> None:
        found = [Streamed(chunk_json, rhythm) for rhythm in (never, always, sometimes)]
        for streamed in found:
            await relayed(executor, streamed, **given)
        assert {streamed.events for streamed in found} == {found[0].events}
        assert [streamed.record.usage for streamed in found] == [found[0].record.usage] * 3
        if seconds_between:
            assert found[1].direct > found[2].direct > 0

    reply = Reply(chunks=text_chunks(*"abcdefghijklmnopqrst", usage=USAGE), seconds_between=seconds_between)
    with_upstream(check, FakeOpenAI(lambda _: reply), dialect="vllm")


def test_what_arrives_after_an_end_and_before_its_reader_runs_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    receive, held = Connection.data_received, list[bytes]()

    def receive_late(connection: Connection, data: bytes) -> None:
        if b'"finish_reason": "stop"' in data:
            held.append(data)
            return
        while held:
            receive(connection, held.pop())
        receive(connection, data)

    async def check(executor: UpstreamExecutor) -> None:
        monkeypatch.setattr(Connection, "data_received", receive_late)
        streamed = Streamed(chunk_json)
        await relayed(executor, streamed)
        assert [ends for ends in streamed.record.ends if ends] == [{0: "stop"}]
        usage = streamed.record.usage
        assert usage is not None
        assert usage.prompt_tokens == USAGE["prompt_tokens"]

    reply = Reply(chunks=text_chunks("a", "b", "c", usage=USAGE), seconds_between=0.02)
    with_upstream(check, FakeOpenAI(lambda _: reply))


def test_an_error_of_another_server_follows_the_events_before_it() -> None:
    async def check(executor: UpstreamExecutor) -> None:
        streamed = Streamed(chunk_json)
        await relayed(executor, streamed)
        assert re.findall(rb'"content":"(.)"', streamed.events) == [b"a", b"b"]
        assert b"out of memory" in streamed.events.split(b"\n\n")[-2]
        assert streamed.direct == 1

    error = {"error": {"message": "out of memory", "code": 500}}
    chunks = [chunk(role="assistant"), chunk("a"), chunk("b"), error]
    with_upstream(check, FakeOpenAI(lambda _: Reply(chunks=chunks, seconds_between=0.01)))
