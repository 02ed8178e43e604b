"""Requests to other servers, which fail in many ways."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from time import monotonic
from uuid import UUID, uuid4

import pytest
from answers import all_chunks, chunks_of
from fake_openai import MODEL, USAGE, FakeOpenAI, Reply, chunk, running, text_chunks
from opened_upstreams import QUESTION, ask, opened, text_of, with_upstream
from waiting import WAIT_SECONDS, until

from nearfar.compiler.runtime.errors import (
    DeadlineExceeded,
    DeviceError,
    NearfarError,
    QueueFull,
    RequestError,
    Unavailable,
)
from nearfar.server_fallback.executors import circuit, upstream, upstream_executor
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.upstream_executor import UpstreamExecutor, UpstreamOptions, open_upstream
from nearfar.server_fallback.schema.completions import CompletionRequest
from nearfar.server_fallback.schema.embeddings import EmbeddingRequest
from nearfar.server_fallback.schema.rerank import RerankRequest
from nearfar.server_fallback.schema.score import ClassifyRequest, ScoreRequest
from nearfar.server_fallback.schema.tokenize import TokenizeRequest

LEAVING = {"error": {"message": "shutting down", "type": "server_error", "param": None, "code": "unavailable"}}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_executor, "RETRY_SECONDS", 0.01)


def test_an_answer_has_our_name_for_the_model_and_the_usage_last() -> None:
    server = FakeOpenAI(
        lambda _: Reply(
            chunks=text_chunks("he", "llo", usage={**USAGE, "prompt_tokens_details": {"cached_tokens": None}})
        )
    )

    async def check(executor: UpstreamExecutor) -> None:
        chunks = await ask(executor)
        assert text_of(chunks) == "hello"
        assert {each.model for each in chunks} == {"ours"}
        assert [choice.finish_reason for each in chunks for choice in each.choices][-1] == "stop"
        assert chunks[-1].choices == []
        assert [each.usage is None for each in chunks] == [True] * (len(chunks) - 1) + [False]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 5
        assert chunks[-1].usage.queue_ms is None
        assert executor.context == 128

    with_upstream(check, server)
    assert server.received[0].body is not None
    assert server.received[0].body["model"] == MODEL


def test_ids_traces_and_the_key_are_passed_on_and_nothing_else() -> None:
    server = FakeOpenAI()

    async def check(executor: UpstreamExecutor) -> None:
        await ask(
            executor, Call("request-7", deadline=monotonic() + 60, headers={"traceparent": "00-ab", "cookie": "secret"})
        )

    with_upstream(check, server, api_key="k3y", dialect="vllm")
    headers = server.received[0].headers
    assert (headers["x-request-id"], headers["traceparent"], headers["authorization"]) == (
        "request-7",
        "00-ab",
        "Bearer k3y",
    )
    assert "cookie" not in headers
    assert 50_000 < int(headers["x-request-timeout-ms"]) <= 60_000


def test_servers_of_openais_dialect_see_uuids_only() -> None:
    server, own = FakeOpenAI(), str(uuid4())

    async def check(executor: UpstreamExecutor) -> None:
        for request_id in (own, "request-7", "request-7", "request-8"):
            await ask(executor, Call(request_id))

    with_upstream(check, server)
    found = [received.headers["x-request-id"] for received in server.received]
    assert [str(UUID(each)) for each in found] == found
    assert (found[0], found[1] == found[2], len(set(found))) == (own, True, 3)


def test_missing_or_differently_named_fields_are_converted_to_openais() -> None:
    bare = {"id": "x", "created": 1, "choices": [{"delta": {"role": "", "content": "a"}, "finish_reason": ""}]}
    end = {"id": "x", "created": 1, "choices": [{"delta": {}, "finish_reason": "eos_token"}], "usage": None}
    server = FakeOpenAI(lambda _: Reply(chunks=[bare, end]))

    async def check(executor: UpstreamExecutor) -> None:
        first, last, counted = await ask(executor)
        assert (first.choices[0].delta.role, first.choices[0].finish_reason) == ("assistant", None)
        assert last.choices[0].finish_reason == "stop"
        assert counted.usage is not None
        assert (counted.usage.prompt_tokens, counted.usage.completion_tokens) == (0, 1)

    with_upstream(check, server)


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (Reply(400, {"error": {"message": "n is wrong", "param": "n"}}), RequestError, "n is wrong"),
        (Reply(404, {"object": "error", "message": "no such model", "code": 404}), RequestError, "no such model"),
        (Reply(422, {"detail": [{"msg": "bad"}]}), RequestError, "bad"),
        (Reply(401, {"error": {"message": "bad key"}}), DeviceError, "rejects the configured API key"),
        (Reply(429, {"error": {"message": "slow down"}}, headers={"Retry-After": "7"}), QueueFull, "slow down"),
        (Reply(503, b"<html>busy", headers={"Retry-After": "soon"}), Unavailable, "busy"),
        (Reply(500, {"error": "broken"}), DeviceError, "broken"),
        (Reply(500, {"error": {"message": "EngineCore encountered an issue."}}), Unavailable, "EngineCore"),
        (Reply(200, b"what?"), Unavailable, "stopped before the end"),
        (Reply(chunks=["what?"]), DeviceError, "expected a JSON object"),
        (Reply(chunks=["[1]"]), DeviceError, "expected a JSON object"),
        (Reply(chunks=[]), Unavailable, "without any output"),
        (
            Reply(chunks=[chunk("a"), {"error": {"message": "out of memory", "code": 500}}]),
            DeviceError,
            "out of memory",
        ),
        (
            Reply(chunks=[{"error": {"message": "too long", "type": "invalid_request_error", "param": "messages"}}]),
            RequestError,
            "too long",
        ),
        (Reply(chunks=[LEAVING]), Unavailable, "shutting down"),
        (Reply(chunks=[chunk("a", finish="x" * 65)]), DeviceError, "finish_reason is not a string"),
        (Reply(chunks=[{**chunk("a"), "choices": 5}]), DeviceError, "choices: the value is not a list"),
        (Reply(chunks=[{**chunk("a"), "choices": ["a"]}]), DeviceError, "choices: the value is not a list"),
        (Reply(chunks=[{**chunk("a"), "choices": [{"index": "0"}]}]), DeviceError, "index is not an integer"),
        (Reply(chunks=[chunk("\ud800")]), DeviceError, "expected a JSON object"),
        (Reply(chunks=["[" * 100_000 + "]" * 100_000]), DeviceError, "expected a JSON object"),
        (Reply(400, b'{"error": {"message": "\\ud800 is wrong"}}'), RequestError, r"\? is wrong"),
        (Reply(500, b"[" * 100_000), DeviceError, r"\[\["),
        (Reply(chunks=[{"id": "x", "created": 1, "choices": [{"index": 0}]}]), DeviceError, r"choices\.0\.delta"),
    ],
)
def test_an_upstreams_error_becomes_one_of_our_errors(reply: Reply, kind: type[NearfarError], message: str) -> None:
    async def check(executor: UpstreamExecutor) -> None:
        with pytest.raises(kind, match=message) as raised:
            await ask(executor)
        assert type(raised.value) is kind
        waits = {"slow down": 7}
        assert raised.value.details.get("retry_after_seconds") == waits.get(message)
        params = {"n is wrong": "n", "too long": "messages"}
        assert raised.value.details.get("param") == params.get(message)

    with_upstream(check, FakeOpenAI(lambda _: reply))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_request_goes_to_the_target_of_a_redirect(status: int) -> None:
    target = FakeOpenAI()
    redirecting = FakeOpenAI(lambda _: Reply(status, b"", headers={"Location": f"{target.url}/v1/chat/completions"}))

    async def run() -> None:
        async with running(target), opened(redirecting) as executor:
            with pytest.raises(DeviceError, match="answers with a redirect, which is not followed"):
                await ask(executor)

    asyncio.run(run())
    assert (len(redirecting.received), target.received) == (1, [])


def test_a_server_that_is_silent_while_it_works_does_not_count_as_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "CHECK_TIMEOUT_SECONDS", 0.02)
    server = FakeOpenAI(lambda _: Reply(chunks=text_chunks(*"abcdefgh" * 2), seconds_between=0.02))

    async def check(executor: UpstreamExecutor) -> None:
        server.lists.clear()
        received = []
        async with aclosing(chunks_of(executor, QUESTION, Call("r"))) as chunks:
            async for each in chunks:
                received.append(each)
                assert executor.state().ready
        assert text_of(received) == "abcdefgh" * 2
        await until(lambda: not executor.state().ready)
        server.lists.set()
        await until(lambda: executor.state().ready)

    monkeypatch.setattr(circuit, "FIRST_WAIT_SECONDS", 0.05)
    with_upstream(check, server, check_seconds=0.01)


def test_a_deadline_ends_a_request_that_hangs_and_does_not_blame_the_server() -> None:
    async def check(executor: UpstreamExecutor) -> None:
        # With one failure less, the circuit would stay closed.
        for _ in range(circuit.FAILURES_TO_OPEN):
            async with asyncio.timeout(WAIT_SECONDS):
                with pytest.raises(DeadlineExceeded):
                    await ask(executor, Call("r", deadline=monotonic() + 0.2))
        assert executor.state().ready

    server = FakeOpenAI(lambda _: Reply(hangs=True))
    with_upstream(check, server)
    # A retry could not end in time either. On a busy machine, the time may pass before a request is sent.
    assert len(server.received) <= circuit.FAILURES_TO_OPEN


def test_a_deadline_holds_in_the_middle_of_an_answer_too() -> None:
    async def check(executor: UpstreamExecutor) -> None:
        with pytest.raises(DeadlineExceeded):
            await ask(executor, Call("r", deadline=monotonic() + 0.15))

    with_upstream(check, FakeOpenAI(lambda _: Reply(chunks=text_chunks(*"abcdefgh"), seconds_between=0.05)))


def test_closing_an_answer_hangs_up() -> None:
    server = FakeOpenAI(lambda _: Reply(chunks=text_chunks(*"abcdefgh" * 9), seconds_between=0.01))

    async def check(executor: UpstreamExecutor) -> None:
        answer = chunks_of(executor, QUESTION, Call("r"))
        await anext(answer)
        assert executor.state().running == 1
        await answer.aclose()
        assert executor.state().running == 0
        await until(lambda: server.hung_up == 1)

    with_upstream(check, server)


def test_a_closed_executor_ends_running_requests_and_accepts_no_more() -> None:
    server = FakeOpenAI(lambda _: Reply(chunks=text_chunks(*"abcdefgh" * 9), seconds_between=0.02))

    async def check(executor: UpstreamExecutor) -> None:
        running = asyncio.create_task(ask(executor))
        while not executor.state().running or not server.received:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        await executor.close()
        with pytest.raises(Unavailable):
            await asyncio.wait_for(running, WAIT_SECONDS)
        with pytest.raises(Unavailable, match="is being unloaded"):
            await ask(executor)

    with_upstream(check, server)


def test_completions_embeddings_and_tokens() -> None:
    part = {"id": "c", "created": 1, "choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]}
    embedding = {
        "object": "list",
        "model": MODEL,
        "data": [{"index": 0, "embedding": [0.5]}],
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }
    replies = {
        "/v1/completions": Reply(chunks=[part]),
        "/v1/embeddings": Reply(value=embedding),
        "/tokenize": Reply(value={"tokens": [1, 2], "count": 2, "max_model_len": 9}),
    }

    async def check(executor: UpstreamExecutor) -> None:
        chunks = await all_chunks(executor, CompletionRequest(model="ours", prompt="a"), Call("r"))
        assert chunks[0].choices[0].text == "x"
        embedded = await executor.embed(EmbeddingRequest(model="ours", input="a"), Call("r"))
        assert (embedded.model, embedded.data[0].embedding) == ("ours", [0.5])
        assert (await executor.tokenize(TokenizeRequest(model="ours", prompt="a"))).tokens == [1, 2]

    with_upstream(check, FakeOpenAI(lambda received: replies[received.path]), dialect="vllm")


def test_reranking_scores_and_classes() -> None:
    usage = {"prompt_tokens": 4, "total_tokens": 4}
    scored = {"object": "list", "id": "s", "created": 1, "model": MODEL, "usage": usage}
    replies = {
        # Jina's servers report no number of prompt tokens, and no meta.
        "/v1/rerank": {"model": MODEL, "usage": {"total_tokens": 4}, "results": [{"index": 1, "relevance_score": 0.5}]},
        "/v1/score": {**scored, "data": [{"object": "score", "index": 0, "score": 0.25}]},
        "/classify": {**scored, "data": [{"index": 0, "label": "a", "probs": [0.75, 0.25], "num_classes": 2}]},
    }
    upstream = FakeOpenAI(lambda received: Reply(value=replies[received.path]))

    async def check(executor: UpstreamExecutor) -> None:
        asked = RerankRequest(model="ours", query="q", documents=["a", "b"], top_n=1)
        ranked = await executor.rerank(asked, Call("request-1"))
        assert (ranked.id, ranked.model, ranked.results[0].index) == ("request-1", "ours", 1)
        assert (ranked.usage.prompt_tokens, ranked.meta.tokens.input_tokens) == (4, 4)
        scores = await executor.score(ScoreRequest(model="ours", text_1="q", text_2="a"), Call("r"))
        assert (scores.model, scores.data[0].score) == ("ours", 0.25)
        classes = await executor.classify(ClassifyRequest(model="ours", input="a"), Call("r"))
        assert classes.data[0].probs == [0.75, 0.25]
        with pytest.raises(RequestError, match="ignores labels and answered with its own"):
            await executor.classify(ClassifyRequest(model="ours", input="a", labels=["b", "c"]), Call("r"))

    with_upstream(check, upstream, dialect="vllm")
    assert upstream.received[0].body == {"model": MODEL, "query": "q", "documents": ["a", "b"], "top_n": 1}


def test_tokenize_is_refused_for_upstreams() -> None:
    async def check(executor: UpstreamExecutor) -> None:
        with pytest.raises(RequestError, match="does not support /tokenize"):
            await executor.tokenize(TokenizeRequest(model="ours", prompt="a"))

    with_upstream(check, FakeOpenAI())


def opening_fails(kind: type[NearfarError], message: str, *urls: str, model: str | None = None) -> None:
    async def attempt() -> None:
        await open_upstream(UpstreamOptions(urls=urls, name="ours", model=model))

    with pytest.raises(kind, match=message):
        asyncio.run(attempt())


def test_an_invalid_upstream_is_an_error_that_states_why() -> None:
    opening_fails(RequestError, "needs the URL")
    opening_fails(RequestError, "is not the URL of a server", "localhost:8000")
    opening_fails(RequestError, "is not a URL", "http://here:port")
    opening_fails(Unavailable, "no connection could be made", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("ids", "wanted", "message"),
    [
        (["a", "b"], None, "serves a, b; name one of them"),
        ([], None, "serves no model"),
        (["a"], "b", "does not serve 'b', but a"),
    ],
)
def test_the_model_must_exist_on_the_upstream(ids: list[str], wanted: str | None, message: str) -> None:
    async def attempt() -> None:
        server = FakeOpenAI()
        server.models = [{"id": each} for each in ids]
        async with running(server):
            await open_upstream(UpstreamOptions(urls=(f"{server.url}/v1/",), name="ours", model=wanted))

    with pytest.raises(RequestError, match=message):
        asyncio.run(attempt())
