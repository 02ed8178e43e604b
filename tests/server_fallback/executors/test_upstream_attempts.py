"""The attempts of a request: their number, their times, their servers, and servers that fail and come back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from time import monotonic

import pytest
from answers import chunks_of
from fake_openai import MODEL, FakeOpenAI, Received, Reply, chunk, running, text_chunks
from opened_upstreams import QUESTION, ask, text_of, with_upstream
from waiting import until

from nearfar.compiler.runtime.errors import DeadlineExceeded, QueueFull, RequestError, Unavailable
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
LEAVING = {"error": {"message": "shutting down", "type": "server_error", "param": None, "code": "unavailable"}}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_executor, "RETRY_SECONDS", 0.001)


def scripted(*replies: Reply) -> Callable[[Received], Reply]:
    rest = list(replies)
    return lambda _: rest.pop(0)


@pytest.mark.parametrize(
    "failure", [Reply(503, {}), Reply(chunks=text_chunks("x"), breaks_after=0), Reply(chunks=[LEAVING])]
)
def test_a_request_without_an_answer_is_sent_again(failure: Reply) -> None:
    server = FakeOpenAI(scripted(failure, failure, Reply(chunks=text_chunks("there"))))

    async def check(executor: UpstreamExecutor) -> None:
        assert text_of(await ask(executor)) == "there"

    with_upstream(check, server)
    assert len(server.received) == 3


def test_a_stream_that_is_complete_without_the_end_of_its_choice_is_cut_off() -> None:
    """A server whose work is aborted may complete its stream."""
    server = FakeOpenAI(lambda _: Reply(chunks=[chunk("one"), chunk(" two")]))

    async def check(executor: UpstreamExecutor) -> None:
        answer = chunks_of(executor, QUESTION, Call("r"))
        assert text_of([await anext(answer), await anext(answer)]) == "one two"
        with pytest.raises(Unavailable, match="cut off before its end"):
            await anext(answer)

    with_upstream(check, server)


def test_it_is_sent_three_times_at_most() -> None:
    server = FakeOpenAI(lambda _: Reply(503, {"error": {"message": "busy"}}))

    async def check(executor: UpstreamExecutor) -> None:
        with pytest.raises(Unavailable, match="busy"):
            await ask(executor)

    with_upstream(check, server)
    assert len(server.received) == 3


def test_after_the_first_chunk_a_broken_connection_is_the_clients_to_see() -> None:
    servers = [FakeOpenAI(lambda _: Reply(chunks=text_chunks("one", "two"), breaks_after=2)) for _ in range(2)]

    async def check(executor: UpstreamExecutor) -> None:
        answer = chunks_of(executor, QUESTION, Call("r"))
        assert text_of([await anext(answer), await anext(answer)]) == "one"
        with pytest.raises(Unavailable, match="the connection broke"):
            await anext(answer)

    with_upstream(check, *servers)
    # No request was sent twice.
    assert sum(len(server.received) for server in servers) == 1


def test_a_full_replica_yields_to_another_and_a_single_one_is_an_error_at_once() -> None:
    full = Reply(429, {"error": {"message": "full"}}, headers={"Retry-After": "3"})
    servers = [FakeOpenAI(lambda _: full), FakeOpenAI()]

    async def goes_on(executor: UpstreamExecutor) -> None:
        for _ in range(4):
            assert text_of(await ask(executor)) == "hi"

    with_upstream(goes_on, *servers)
    # The full server is always the one that was chosen longest ago.
    assert [len(server.received) for server in servers] == [4, 4]

    async def says_so(executor: UpstreamExecutor) -> None:
        for _ in range(circuit.FAILURES_TO_OPEN):
            with pytest.raises(QueueFull):
                await ask(executor)
        assert executor.state().ready

    alone = FakeOpenAI(lambda _: full)
    with_upstream(says_so, alone)
    assert len(alone.received) == circuit.FAILURES_TO_OPEN


def test_a_killed_replica_leaves_no_request_stuck_and_is_used_again_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(circuit, "FIRST_WAIT_SECONDS", 0.2)
    slow = Reply(chunks=text_chunks(*"abcdefgh"), seconds_between=0.01)
    servers = [FakeOpenAI(lambda _: slow) for _ in range(2)]

    async def outcome(executor: UpstreamExecutor) -> str:
        try:
            return text_of(await ask(executor))
        except Unavailable as error:
            return error.message

    async def check(executor: UpstreamExecutor) -> None:
        tasks = []
        for index in range(30):
            tasks.append(asyncio.create_task(outcome(executor)))
            await asyncio.sleep(0.005)
            if index == 15:
                await servers[0].die()
        answers = await asyncio.gather(*tasks)
        assert set(answers) <= {"abcdefgh", f"{servers[0].url}: the connection broke; check that it is running"}
        # All requests after its end went to the other one.
        assert set(answers[16:]) == {"abcdefgh"}
        assert executor.state().detail == "1 of 2 servers answer"
        assert executor.state().running == 0
        await servers[0].start()
        received = len(servers[0].received)
        while len(servers[0].received) == received:
            assert text_of(await ask(executor)) == "abcdefgh"
            await asyncio.sleep(0.05)
        assert executor.state().detail == "2 of 2 servers answer"

    with_upstream(check, *servers)


def test_checks_find_a_server_that_came_back_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit, "FIRST_WAIT_SECONDS", 0.05)
    server = FakeOpenAI()

    async def check() -> None:
        await server.start()
        options = UpstreamOptions(urls=(server.url,), name="ours", check_seconds=0.05)
        executor = await open_upstream(options)
        await server.die()
        with pytest.raises(Unavailable):
            await ask(executor)
        assert not executor.state().ready
        await server.start()
        await until(lambda: executor.state().ready)
        await executor.close()
        await server.die()

    asyncio.run(check())


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


def hearing(sound: bool | None) -> FakeOpenAI:
    """A server of nearfar whose model reads recordings or not; None: one that is shutting down."""

    def reply(received: Received) -> Reply:
        if received.path != "/v1/nearfar/about":
            first, *others = text_chunks("hears" if sound else "is deaf")
            return Reply(chunks=[{**first, "transcripts": [TRANSCRIPT] if sound else "none"}, *others])
        if sound is None:
            return Reply(503, LEAVING)
        return Reply(value={"api_version": 1, "models": [{"id": MODEL, "tools": True, "sound": sound}]})

    return FakeOpenAI(reply)


TRANSCRIPT = {"param": "messages[0].content[0]", "text": "hello", "language": None, "seconds": 1.5}
SOUND = ChatCompletionRequest.model_validate(
    {
        "model": "ours",
        "messages": [
            {
                "role": "user",
                "content": [{"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}],
            }
        ],
    }
)


def test_a_request_with_a_recording_is_sent_to_a_server_that_hears() -> None:
    deaf, ears = hearing(False), hearing(True)

    async def check(executor: UpstreamExecutor) -> None:
        for _ in range(3):
            first, *others = await ask(executor, question=SOUND)
            assert text_of([first, *others]) == "hears"
            assert [each.model_dump() for each in first.transcripts or ()] == [TRANSCRIPT]
            assert all(each.transcripts is None for each in others)
        await ask(executor)
        await ask(executor)

    with_upstream(check, deaf, ears, dialect="nearfar")
    # Each is asked once, and other requests go to both.
    assert [each.path for each in deaf.received] == ["/v1/nearfar/about", "/v1/chat/completions"]
    assert [each.path for each in ears.received] == ["/v1/nearfar/about", *["/v1/chat/completions"] * 4]


def test_a_recording_that_no_server_hears_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit, "FIRST_WAIT_SECONDS", 600.0)
    deaf, leaving = hearing(False), hearing(None)

    async def none(executor: UpstreamExecutor) -> None:
        with pytest.raises(RequestError, match=r"no server of this model reads sound .*--transcriber MODEL"):
            await ask(executor, question=SOUND)

    async def unknown(executor: UpstreamExecutor) -> None:
        # One that does not answer now may hear.
        for _ in range(circuit.FAILURES_TO_OPEN):
            with pytest.raises(Unavailable, match="shutting down"):
                await ask(executor, question=SOUND)
        # Nor does it become deaf when it is out of use, and is not asked.
        with pytest.raises(Unavailable, match="no server of this model answers"):
            await ask(executor, question=SOUND)

    async def of_others(executor: UpstreamExecutor) -> None:
        assert text_of(await ask(executor, question=SOUND)) == "is deaf"

    with_upstream(none, deaf, dialect="nearfar")
    with_upstream(unknown, deaf, leaving, dialect="nearfar")
    with_upstream(of_others, deaf, dialect="vllm")
