"""A near engine that guesses and a server that checks, over a socket: the answers are the far model's, whatever near
guesses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from asgi import run
from fake_models import FakeExecutor
from hash_model import VOCAB
from hash_runner import MODEL, HashRunner
from live_server import LiveServer
from test_same_under_load import alone
from verifying_executor import VerifyingExecutor, served

from nearfar.compiler.ir.sampling import Sampling
from nearfar.compiler.runtime.errors import DeviceError, NearfarError, QueueFull, RequestError, Unavailable
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import read_keys
from nearfar.server_fallback.engine.request import AnswerEnd, TokenRequest
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.router.sides.wire_speculation import FarModel, WireSpeculation
from nearfar.server_fallback.schema.verify import VerifyOpen

LIMITS = Limits(tokens=24, sequences=4, rows=4, pages=24)
PROMPT = [13, 2, 3, 13, 10, 1, 5, 13, 1, 14]
REQUEST = TokenRequest(PROMPT, 20)


class WrongNowAndThen(HashRunner):
    """The same as the far model, except for every third token."""

    def _sample(self, tokens: list[int], slot: int, flags: int, settings: list[float]) -> int:
        token = super()._sample(tokens, slot, flags, settings)
        if len(tokens) % 3 == 0:
            token = (token + 1) % VOCAB
            self._sampled[slot] = token
        return token


def far(server: LiveServer, **other: Any) -> FarModel:
    return FarModel(
        **{"url": f"http://127.0.0.1:{server.port}/v1", "model": "fake", "tokenizer_sha256": "5ha", **other}
    )


async def generated(source: WireSpeculation, request: TokenRequest = REQUEST) -> tuple[list[int], AnswerEnd]:
    tokens: list[int] = []
    async for item in source.generate(request):
        if isinstance(item, AnswerEnd):
            return tokens, item
        tokens.append(item.token_id)
    raise AssertionError("the answer has no end")


async def settled(*engines: TokenEngine) -> None:
    for engine in engines:
        while engine.stats().running or engine.stats().waiting:
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("near_runner", [HashRunner, WrongNowAndThen])
@pytest.mark.parametrize("draft_tokens", [1, 4])
def test_answers_are_the_far_models_alone_in_fewer_forwards(near_runner: type[HashRunner], draft_tokens: int) -> None:
    requests = [TokenRequest([index, *PROMPT], 16, Sampling(temperature=index % 2, seed=index)) for index in range(6)]
    expected = alone(HashRunner(LIMITS), MODEL, requests)

    async def work() -> None:
        near = TokenEngine(near_runner(LIMITS, threaded=True), MODEL)
        executor = VerifyingExecutor()
        async with served(executor) as server:
            source = WireSpeculation(near, far(server), draft_tokens)
            answers = await asyncio.gather(*(generated(source, request) for request in requests))
            assert [(tokens, end.finish_reason) for tokens, end in answers] == expected
            assert source.counts.tokens == sum(len(tokens) for tokens, _ in answers)
            if near_runner is HashRunner:
                # No guess is wrong, but a step without room for all guesses checks only the first of them.
                assert source.counts.accepted > 0.8 * source.counts.drafted
                assert source.counts.rounds < source.counts.tokens
            else:
                assert 0 < source.counts.accepted < source.counts.drafted
            await settled(near, executor.engine)
        await near.close()

    run(work())


def test_guesses_made_ahead_are_the_next_draft_if_all_are_accepted() -> None:
    ((tokens, _),) = alone(HashRunner(LIMITS), MODEL, [REQUEST])

    async def work() -> None:
        runner = HashRunner(LIMITS)
        near = TokenEngine(runner, MODEL)
        async with served() as server:
            source = WireSpeculation(near, far(server), 3)
            assert (await generated(source))[0] == tokens
            assert (source.counts.rounds, source.counts.accepted) == (5, 15)
        # Near computes its prompt and each token but the last exactly once.
        assert sum(len(batch.token_ids) for batch in runner.batches) <= len(PROMPT) + len(tokens)
        await near.close()

    run(work())


def test_far_answers_alone_if_near_fails_or_is_full() -> None:
    ((tokens, reason),) = alone(HashRunner(LIMITS), MODEL, [REQUEST])
    full = replace(MODEL, context=len(PROMPT) + 3)

    async def work(near: TokenEngine) -> None:
        async with served() as server:
            answer, end = await generated(WireSpeculation(near, far(server)))
            assert (answer, end.finish_reason, end.completion_tokens) == (tokens, reason, len(tokens))
        await near.close()

    async def failing() -> None:
        await work(
            TokenEngine(HashRunner(LIMITS, fail=lambda number: DeviceError("lost") if number == 1 else None), MODEL)
        )

    async def short() -> None:
        await work(TokenEngine(HashRunner(LIMITS), full))

    run(failing())
    run(short())


class WithoutLimit(WireSpeculation):
    """The far side does not stop at the limit."""

    def _opening(self, request: TokenRequest) -> VerifyOpen:
        return WireSpeculation._opening(self, replace(request, max_tokens=None))


def test_tokens_beyond_the_limit_are_cut() -> None:
    ((tokens, _),) = alone(HashRunner(LIMITS), MODEL, [REQUEST])

    async def work() -> None:
        near = TokenEngine(HashRunner(LIMITS), MODEL)
        async with served() as server:
            answer, end = await generated(WithoutLimit(near, far(server)))
            assert (answer, end.finish_reason, end.completion_tokens) == (tokens, "length", len(tokens))
        await near.close()

    run(work())


def test_closing_an_answer_early_ends_it_on_both_sides() -> None:
    async def work() -> None:
        near, executor = (
            TokenEngine(HashRunner(LIMITS, threaded=True, step_seconds=0.005), MODEL),
            VerifyingExecutor(step_seconds=0.005),
        )
        async with served(executor) as server:
            answer = WireSpeculation(near, far(server)).generate(REQUEST)
            await anext(answer)
            await answer.aclose()
            await settled(near, executor.engine)
            while server.server._service.limits.running:
                await asyncio.sleep(0.002)
        await near.close()

    run(work())


def test_a_stop_token_of_the_request_ends_the_answer() -> None:
    ((tokens, _),) = alone(HashRunner(LIMITS), MODEL, [REQUEST])
    stop = next(token for index, token in enumerate(tokens) if index > 3 and token not in tokens[:index])

    async def work() -> None:
        near = TokenEngine(HashRunner(LIMITS), MODEL)
        async with served() as server:
            request = TokenRequest(PROMPT, 20, stop_token_ids=frozenset({stop}))
            answer, end = await generated(WireSpeculation(near, far(server)), request)
            assert (answer, end.finish_reason) == (tokens[: tokens.index(stop)], "stop")
        await near.close()

    run(work())


@pytest.mark.parametrize(
    ("executor", "config", "options", "kind", "code"),
    [
        (VerifyingExecutor, {}, {"tokenizer_sha256": "other"}, RequestError, "tokenizer_differs"),
        (VerifyingExecutor, {}, {"model": "nobody"}, RequestError, "model_not_found"),
        (FakeExecutor, {}, {}, RequestError, "verify_unavailable"),
        (FakeExecutor, {}, {"url": "/elsewhere"}, RequestError, "verify_unavailable"),
        (
            VerifyingExecutor,
            {"keys": read_keys(None, {"NEARFAR_API_KEYS": "web=sk-12345678"})},
            {},
            RequestError,
            "wrong_key",
        ),
        (VerifyingExecutor, {"max_concurrent_requests": 0}, {}, QueueFull, None),
        (VerifyingExecutor, {"request_timeout_seconds": 0.0}, {}, Unavailable, None),
        (VerifyingExecutor, {}, {"url": "http://127.0.0.1:9"}, Unavailable, None),
    ],
)
def test_refusals_of_the_far_side_are_typed_errors(
    executor: type[FakeExecutor],
    config: dict[str, Any],
    options: dict[str, Any],
    kind: type[NearfarError],
    code: str | None,
) -> None:
    async def work() -> None:
        near = TokenEngine(HashRunner(LIMITS), MODEL)
        async with served(executor(), ApiConfig(**config)) as server:
            if options.get("url", "").startswith("/"):
                options["url"] = f"http://127.0.0.1:{server.port}{options['url']}"
            with pytest.raises(kind) as refused:
                await generated(WireSpeculation(near, far(server, **options)))
            assert type(refused.value) is kind
            assert refused.value.details.get("code") == code
        await settled(near)
        await near.close()

    run(work())


def test_parameters_that_drafts_do_not_support_are_errors_before_anything_is_sent() -> None:
    async def work() -> None:
        near = TokenEngine(HashRunner(LIMITS), MODEL)
        source = WireSpeculation(near, FarModel("http://127.0.0.1:9", "fake", "5ha"))
        wrong: Sequence[TokenRequest] = (
            TokenRequest(PROMPT, 4, Sampling(repetition_penalty=2.0)),
            TokenRequest(PROMPT, 4, when_full=2),
            TokenRequest(PROMPT, 4, logprobs=1),
        )
        for request in wrong:
            with pytest.raises(RequestError, match="send the request to the far side alone"):
                await generated(source, request)
        assert source.counts.sent_bytes == 0
        await near.close()

    run(work())
