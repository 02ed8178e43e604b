"""Which prompts a gateway sends through a prefill worker, and which worker; and the options of roles."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from fake_openai import FakeOpenAI, Reply, text_chunks
from opened_upstreams import ask, with_upstream

from nearfar.compiler.cli import main
from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.prefill_placement import PrefillPlacement
from nearfar.server_fallback.executors.prefill_workers import BLOCK_TOKENS, PrefillWorkers, token_hashes
from nearfar.server_fallback.executors.relay import Relay
from nearfar.server_fallback.executors.upstream_bounds import bounds_of
from nearfar.server_fallback.executors.upstream_executor import UpstreamExecutor
from nearfar.server_fallback.schema.chat import ChatCompletionChunk, ChatCompletionRequest
from nearfar.server_fallback.schema.completions import CompletionRequest
from nearfar.server_fallback.schema.pages import NOBODY, PREFILL_HEADER
from nearfar.server_fallback.text.output import Chunks

URLS = ("http://a:1/v1", "http://b:2")
LONG = token_hashes([7 * i % 200 for i in range(1024)])


def placed(work: Callable[[PrefillWorkers], Any]) -> Any:
    async def run() -> Any:
        # The checks of the workers do not begin in the test.
        workers = PrefillWorkers(URLS, None, check_seconds=3600)
        workers._checks.cancel()
        try:
            return work(workers)
        finally:
            await workers.close()

    return asyncio.run(run())


def relay() -> Relay[Any]:
    bounds = bounds_of(CompletionRequest(model="m", prompt="a"), "nearfar")
    return Relay(ChatCompletionChunk, "m", bounds, Chunks(lambda _: None), lambda _: {})


def test_the_worker_that_is_done_first_is_chosen() -> None:
    def work(workers: PrefillWorkers) -> None:
        first, second = workers.all
        assert workers.choose(LONG, 1024) is first
        with workers.computing(first, LONG, 1024):
            assert first.queued == 1024
            assert workers.choose([], 100) is second
            # It has computed this prompt by the time at which the other one would begin.
            with workers.computing(second, [], 2000):
                assert workers.choose(LONG, 1024) is first
        assert (first.queued, second.queued) == (0, 0)
        # It has the prompt in its cache, and another one as long is as good on either.
        assert workers.choose(LONG, 1024) is first
        assert workers.choose(LONG, 1024, tried=[first]) is second
        first.upstream.circuit.failed(certain=True)
        assert workers.choose(LONG, 1024) is second
        assert first.seen == {}
        assert workers.choose(LONG, 1024, tried=[second]) is None
        assert workers.answering == 1

    placed(work)


def test_a_worker_has_the_name_of_the_options() -> None:
    def work(workers: PrefillWorkers) -> None:
        first, second = workers.all
        assert [workers.named(url) for url in (*URLS, "http://a:1", "http://b:2/", "http://c")] == [
            first, second, first, second, None,
        ]  # fmt: skip

    placed(work)


def test_only_long_prompts_that_the_decode_worker_has_not_seen_are_placed() -> None:
    def work(workers: PrefillWorkers) -> None:
        placement, call = PrefillPlacement(workers, 256), Call("1", headers={"traceparent": "00"})
        blocks = len(LONG)
        assert blocks * BLOCK_TOKENS == 1024
        for prefixes, seen, name in (
            (LONG, 0, "http://a:1"),
            (LONG[:1], 0, NOBODY),
            (LONG, blocks - 1, NOBODY),
            (LONG, blocks - 2, "http://a:1"),
        ):
            with placement.of(prefixes, seen, call, relay()) as given:
                assert given.headers == {"traceparent": "00", PREFILL_HEADER: name}
        for worker in workers.all:
            worker.upstream.circuit.failed(certain=True)
        with placement.of(LONG, 0, call, relay()) as given:
            # The decode worker may reach one.
            assert given is call
        assert placement.state().answering == 0

    placed(work)


def test_a_prompt_with_a_picture_is_not_placed() -> None:
    server = FakeOpenAI(lambda _: Reply(chunks=text_chunks("a")))
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4000}}

    async def check(executor: UpstreamExecutor) -> None:
        for content in ("short", [picture]):
            asked = {"model": "ours", "messages": [{"role": "user", "content": content}]}
            await ask(executor, question=ChatCompletionRequest.model_validate(asked))

    with_upstream(check, server, dialect="nearfar", prefill_urls=("http://127.0.0.1:9",))
    # The decode worker, which knows how much text is before the picture, decides.
    assert [each.headers.get(PREFILL_HEADER.lower()) for each in server.received] == [NOBODY, None]


def test_a_worker_is_busy_until_the_answer_begins() -> None:
    def work(workers: PrefillWorkers) -> None:
        placement, answer = PrefillPlacement(workers, 256), relay()
        with ExitStack() as running:
            running.enter_context(placement.of(LONG, 0, Call("1"), answer))
            assert workers.all[0].queued == 1024
            answer.on_begin()
            assert workers.all[0].queued == 0
        assert workers.all[0].queued == 0

    placed(work)


def test_a_worker_needs_an_address() -> None:
    async def work() -> None:
        for url in ("unix:", "ftp://a"):
            with pytest.raises(RequestError, match="upstream"):
                PrefillWorkers([url], None)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--role", "decode"], "--role decode needs a prefill worker"),
        (["--prefill-from", "http://a"], "add --role decode"),
        (["--role", "prefill", "--prefill-from", "http://a"], "--role is prefill"),
        (["--role", "prefill", "--front-ends", "2"], "leave --front-ends at 1"),
        (["--role", "middle"], "'middle'"),
        (["--role", "prefill", "--executor", "vllm"], "--executor vllm has its own ways"),
        (["--role", "decode", "--executor", "upstream", "--upstream", "http://a"], "the upstream servers have roles"),
        (["--executor", "upstream", "--upstream", "http://a", "--prefill-from", "http://b"], "add --dialect nearfar"),
        (["--role", "decode", "--prefill-from", "http://a", "--prefill-api-key-env", "NOT_SET"], "NOT_SET"),
        (["--role", "decode", "--prefill-from", "https://a", "--tls-ca", "no.pem"], "--tls-ca no.pem: No such file"),
        (["--socket", "a", "--front-ends", "2"], "--socket"),
    ],
)
def test_roles_that_cannot_work_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(httpx, "get", lambda *_, **__: pytest.fail("nothing is requested"))
    monkeypatch.setenv("COLUMNS", "300")
    try:
        status = main(["serve", "demo", *arguments])
    except SystemExit as error:
        status = error.code  # type: ignore[assignment]
    assert status
    assert message in capsys.readouterr().err.replace("\n", " ")
