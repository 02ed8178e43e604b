"""Streams whose tokens go past their generators: a sink receives the same events, in the same order."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_openai import USAGE, FakeOpenAI, Reply, chunk, text_chunks
from fake_source import HYBRID, FakeSource, ids, text_model
from local_requests import CALL, TOOL, chat_request, run
from opened_upstreams import with_upstream

from nearfar.compiler.errors import DeviceError
from nearfar.server_fallback.api.encode import chat_chunk_json, completion_chunk_json
from nearfar.server_fallback.engine.item_queue import ItemQueue
from nearfar.server_fallback.engine.request import (
    Completion,
    GeneratedToken,
    PromptLogprobs,
    TokenHandler,
    TokenRequest,
)
from nearfar.server_fallback.executors.executor import Call, EventBlock
from nearfar.server_fallback.executors.http_transport import Connection
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.upstream_executor import UpstreamExecutor
from nearfar.server_fallback.schema.completions import CompletionRequest

TEXT = 'Say "é\n\u2028\\" \U0001f600 and\x00 \x7f.'
CALLED = 'Well. <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
# These values are new in each answer.
FRESH = re.compile(rb'"(chatcmpl-|cmpl-|call_)[^"]*"|"created":\d+')
END = Completion("stop", 1, 3, 0, 0.0, 0.0, 0.0)


class Pushing(FakeSource):
    """Puts the tokens of `FakeSource` into a queue, ``per_turn`` at a time."""

    per_turn = 1

    async def batches(
        self, request: TokenRequest, handle: TokenHandler | None = None
    ) -> AsyncGenerator[list[PromptLogprobs | GeneratedToken | Completion], None]:
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
                if isinstance(items[-1], Completion):
                    return
        finally:
            task.cancel()


@dataclass
class Sent:
    """A `Sink`, and the reader of the generators that it passes. ``is_open``: as after the first event."""

    rhythm: Callable[[int], bool]
    blocks: list[EventBlock] = field(default_factory=list)
    is_open: bool = False
    asked: int = 0
    sent: int = 0

    @property
    def is_ready(self) -> bool:
        self.asked += 1
        return self.is_open and self.rhythm(self.asked)

    def send(self, part: EventBlock) -> None:
        self.sent += 1
        self.blocks.append(part)

    async def read(self, blocks: AsyncGenerator[EventBlock, None]) -> None:
        async with aclosing(blocks):
            async for block in blocks:
                self.blocks.append(block)
                self.is_open = self.is_open or bool(block.texts)

    @property
    def events(self) -> bytes:
        return FRESH.sub(b"", b"".join(block.sent for block in self.blocks))


def encode(write: Callable[[Any, bool], bytes | None], chunk: Any) -> bytes | None:
    written = write(chunk, True)
    return None if written is None else b"data: " + written + b"\n\n"


def always(_: int) -> bool:
    return True


def never(_: int) -> bool:
    return False


def sometimes(asked: int) -> bool:
    return asked % 3 > 0


def pushing(folder: Path, text: str, per_turn: int) -> LocalExecutor:
    source = Pushing(ids(text))
    source.per_turn = per_turn
    return LocalExecutor(source, text_model(folder, HYBRID, markers=("<think>", "</think>")))


@pytest.mark.parametrize(
    "given", [{}, {"n": 2}, {"stop": "and"}, {"logprobs": True}, {"tools": [TOOL]}, {"max_tokens": 7}], ids=str
)
def test_a_sink_gets_the_events_of_a_chat_in_their_order(tmp_path: Path, given: dict[str, Any]) -> None:
    async def check(text: str, per_turn: int) -> None:
        local = pushing(tmp_path, text, per_turn)
        found = []
        for rhythm in (never, always, sometimes):
            sent = Sent(rhythm)
            relay = local.relay_chat(chat_request(**given), CALL, partial(encode, chat_chunk_json), sent)
            await sent.read(relay)
            found.append(sent)
        assert found[0].sent == 0
        if per_turn == 1:
            assert {sent.events for sent in found} == {found[0].events}
            # Choices of one answer go through its generators.
            assert (found[1].sent > found[2].sent > 0) if "n" not in given else not any(each.sent for each in found)
        # Tokens that come together may share an event.
        texts = [b"".join(re.findall(rb'"content":"([^"\\]*)', sent.events)) for sent in found]
        assert texts[1:] == texts[:1] * 2
        assert [sent.blocks[-1].usage for sent in found[1:]] == [found[0].blocks[-1].usage] * 2

    for text in (TEXT, CALLED, "<think>\nHm, é.\n</think>\n\nYes."):
        run(check(text, 1))
    run(check("abc" * 10, 3))


def test_a_completion_goes_past_its_generators_too(tmp_path: Path) -> None:
    async def check() -> None:
        sent = Sent(always)
        request = CompletionRequest.model_validate({"model": "fake", "prompt": "p"})
        write = partial(encode, completion_chunk_json)
        await sent.read(pushing(tmp_path, "a" * 20, 1).relay_completion(request, CALL, write, sent))
        assert (sent.events.count(b'"text":"a"'), sent.sent) == (20, 19)

    run(check())


def test_a_call_that_observes_tokens_gets_all_of_them_from_the_generator(tmp_path: Path) -> None:
    async def check() -> None:
        sent, observed = Sent(always), list[int]()
        call = Call("r", observe_token=observed.append)
        relay = pushing(tmp_path, "abc", 1).relay_chat(chat_request(), call, partial(encode, chat_chunk_json), sent)
        await sent.read(relay)
        assert (bytes(observed), sent.sent) == (b"abc", 0)

    run(check())


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


async def relayed(executor: UpstreamExecutor, sent: Sent, **given: Any) -> None:
    request = chat_request(**given)
    await sent.read(executor.relay_chat(request, Call("r"), partial(encode, chat_chunk_json), sent))


@pytest.mark.parametrize("seconds_between", [0.0, 0.005])
@pytest.mark.parametrize("given", [{}, {"max_tokens": 9}])
def test_a_sink_gets_the_events_of_another_server_in_their_order(seconds_between: float, given: dict[str, Any]) -> None:
    async def check(executor: UpstreamExecutor) -> None:
        found = [Sent(never), Sent(always), Sent(sometimes)]
        for sent in found:
            await relayed(executor, sent, **given)
        assert {sent.events for sent in found} == {found[0].events}
        assert [sent.blocks[-1].usage for sent in found] == [found[0].blocks[-1].usage] * 3
        if seconds_between:
            assert found[1].sent > found[2].sent > 0

    reply = Reply(chunks=text_chunks(*"abcdefghijklmnopqrst", usage=USAGE), seconds_between=seconds_between)
    with_upstream(check, FakeOpenAI(lambda _: reply), dialect="vllm")


def test_what_arrives_after_a_handled_end_and_before_its_reader_runs_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
        sent = Sent(always)
        await relayed(executor, sent)
        assert [block.ends for block in sent.blocks if block.ends] == [{0: "stop"}]
        usage = sent.blocks[-1].usage
        assert usage is not None
        assert usage.prompt_tokens == USAGE["prompt_tokens"]

    reply = Reply(chunks=text_chunks("a", "b", "c", usage=USAGE), seconds_between=0.02)
    with_upstream(check, FakeOpenAI(lambda _: reply))


def test_an_error_of_another_server_follows_the_events_before_it() -> None:
    async def check(executor: UpstreamExecutor) -> None:
        sent = Sent(always)
        with pytest.raises(DeviceError, match="out of memory"):
            await relayed(executor, sent)
        assert re.findall(rb'"content":"(.)"', sent.events) == [b"a", b"b"]
        assert sent.sent == 1

    error = {"error": {"message": "out of memory", "code": 500}}
    chunks = [chunk(role="assistant"), chunk("a"), chunk("b"), error]
    with_upstream(check, FakeOpenAI(lambda _: Reply(chunks=chunks, seconds_between=0.01)))
