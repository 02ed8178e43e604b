"""The same request gives the same tokens alone and under load: greedy and seeded, preempted, beside others that arrive
and end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hash_model import VOCAB
from hash_runner import MODEL, HashRunner
from plain_target import compile_plain
from scheduler_traces import pools_of
from tiny_models import VOCAB_SIZE
from waiting import WAIT_SECONDS

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.ir.kv_format import KvName
from nearfar.compiler.ir.sampling import Sampler, Sampling
from nearfar.compiler.runtime.generate import generate
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.request import AnswerEnd, GeneratedToken, TokenRequest
from nearfar.server_fallback.engine.step_runner import StepRunner
from nearfar.server_fallback.engine.token_engine import TokenEngine

Answer = tuple[list[int], str]


def mixed_requests(count: int, vocab_size: int, lengths: Sequence[int], max_tokens: int) -> list[TokenRequest]:
    """Requests of all kinds: greedy and sampled, with every filter and penalty, biased, of several priorities, some
    with one prompt or with a minimum length.
    """
    random = np.random.default_rng(count)
    system = random.integers(1, vocab_size, 12).tolist()
    samplings: list[dict[str, Any]] = [
        {},
        {"temperature": 0.8},
        {"temperature": 1.2, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.8, "min_p": 0.02},
        {"repetition_penalty": 1.3},
        {"temperature": 0.7, "frequency_penalty": 0.5, "presence_penalty": 0.2},
        {"logit_bias": {3: 4.0, 7: -2.0}},
        {"temperature": 1.0, "repetition_penalty": 1.1, "logit_bias": {5: 3.0}},
    ]
    requests: list[TokenRequest] = []
    for index in range(count):
        prompt = (
            system[: int(random.integers(0, 13))] + random.integers(1, vocab_size, int(random.choice(lengths))).tolist()
        )
        # Every fourth request has the prompt of the one before it.
        prompt = list(requests[-1].prompt_ids) if index % 4 == 3 else prompt
        sampling = Sampling(seed=int(random.integers(0, 1 << 32)), **samplings[index % len(samplings)])
        priority = int(random.integers(0, 3))
        length = int(random.integers(1, max_tokens + 1))
        min_tokens = length // 2 if index % 5 == 4 else 0
        requests.append(TokenRequest(prompt, length, sampling, priority=priority, min_tokens=min_tokens))
    return requests


async def answer(engine: TokenEngine, request: TokenRequest) -> Answer:
    tokens: list[int] = []
    async for item in engine.generate(request):
        if isinstance(item, AnswerEnd):
            return tokens, item.finish_reason
        if isinstance(item, GeneratedToken):
            tokens.append(item.token_id)
    raise AssertionError("the answer has no end")


async def left_early(engine: TokenEngine, request: TokenRequest, after: int) -> None:
    stream = engine.generate(request)
    for _ in range(after):
        await anext(stream, None)
    await stream.aclose()


def alone(runner: StepRunner, model: TokenModel, requests: Sequence[TokenRequest]) -> list[Answer]:
    """Each request alone. The cache is cleared before each."""

    async def work() -> list[Answer]:
        engine = TokenEngine(runner, model)
        answers = []
        for request in requests:
            answers.append(await answer(engine, request))
            engine._loop.scheduler.kv.prefixes.clear()
        await engine.close()
        return answers

    return asyncio.run(work())


def under_load(
    runner: StepRunner, model: TokenModel, requests: Sequence[TokenRequest], noise: Sequence[TokenRequest]
) -> list[Answer]:
    """All at once and in waves, beside others that are cancelled. Pages run out meanwhile, and none is lost."""

    async def work() -> list[Answer]:
        engine = TokenEngine(runner, model)
        # The engine's thread waits until half of them have arrived, which need more pages than there are.
        half_arrived = threading.Event()

        def wait() -> None:
            assert half_arrived.wait(WAIT_SECONDS)

        engine._inbox.call(wait)
        tasks: list[asyncio.Future[Answer]] = []
        leaving: list[asyncio.Future[None]] = []
        for index, request in enumerate(requests):
            tasks.append(asyncio.ensure_future(answer(engine, request)))
            if index < len(noise):
                leaving.append(asyncio.ensure_future(left_early(engine, noise[index], index % 4)))
            if index == len(requests) // 2:
                await asyncio.sleep(0)
                half_arrived.set()
            await asyncio.sleep(0.001 * (index % 5 == 4))
        answers = list(await asyncio.gather(*tasks))
        await asyncio.gather(*leaving)
        while engine.stats().running or engine.stats().waiting:
            await asyncio.sleep(0.001)
        scheduler = engine._loop.scheduler
        assert engine.stats().preemptions > 0
        assert all(pool.free + len(pool.idle) == pool.size for pool in pools_of(scheduler))
        states = scheduler.kv.states
        assert states is None or states.free + len(states.idle) == states.size - scheduler.config.max_sequences
        await engine.close()
        return answers

    return asyncio.run(work())


# Threads change when steps end, and numbers of slots who waits.
@pytest.mark.parametrize(
    ("threaded", "states"),
    [
        *((False, states) for states in (None, 8, 9, 14)),
        (True, 14),
        *(pytest.param(True, states, marks=pytest.mark.exhaustive) for states in (None, 8, 9)),
    ],
)
def test_a_hundred_mixed_requests_are_answered_as_each_alone(threaded: bool, states: int | None) -> None:
    """Without states, and with none to six slots for snapshots of states."""
    requests = mixed_requests(100, VOCAB, (1, 3, 4, 9, 17, 30), 16)
    limits = Limits(tokens=24, sequences=8, rows=8, pages=18, states=states)
    expected = alone(HashRunner(limits), MODEL, requests)
    assert sum(len(tokens) for tokens, _ in expected) > 200
    noise = mixed_requests(33, VOCAB, (2, 12), 16)
    assert under_load(HashRunner(limits, threaded=threaded, step_seconds=0.001), MODEL, requests, noise) == expected


def test_32_mixed_requests_on_a_model_are_answered_as_each_alone(tiny_bundle: Path) -> None:
    bundle = open_bundle(tiny_bundle)
    requests = mixed_requests(32, VOCAB_SIZE, (1, 5, 15, 16, 40), 20)
    noise = mixed_requests(6, VOCAB_SIZE, (3, 20), 8)
    model = TokenModel.of(bundle.manifest)

    def runner(pages: int) -> ReferenceRunner:
        return ReferenceRunner(bundle, limits=Limits(tokens=64, sequences=8, rows=8, pages=pages), activation="float32")

    assert under_load(runner(8), model, requests, noise) == alone(runner(8), model, requests)


@pytest.mark.parametrize("kv", ["q8", pytest.param("q4", marks=pytest.mark.exhaustive)])
def test_mixed_requests_with_keys_and_values_of_integers_are_answered_as_each_alone(
    kv: KvName, tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    """Their pages are shared by prompts that begin alike, and computed again after a preemption."""
    bundle = compile_plain(tiny_checkpoints["qwen3"], tmp_path / "bundle", "f32", 96, kv=kv)
    requests = mixed_requests(16, VOCAB_SIZE, (1, 5, 15, 16, 40), 20)
    model = TokenModel.of(bundle.manifest)

    def runner() -> ReferenceRunner:
        return ReferenceRunner(bundle, limits=Limits(tokens=64, sequences=8, rows=8, pages=6), activation="float32")

    assert under_load(runner(), model, requests, mixed_requests(4, VOCAB_SIZE, (3, 20), 8)) == alone(
        runner(), model, requests
    )


def test_mixed_requests_on_a_model_with_windows_are_answered_as_each_alone(windowed_bundle: Path) -> None:
    """Pages behind the windows are freed, and other sequences use them."""
    bundle = open_bundle(windowed_bundle)
    requests = mixed_requests(12, VOCAB_SIZE, (1, 15, 40, 60), 60)
    model = TokenModel.of(bundle.manifest)

    def runner(sequences: int, window_pages: int) -> ReferenceRunner:
        limits = Limits(tokens=32, sequences=sequences, rows=8, pages=16, window_pages=window_pages)
        return ReferenceRunner(bundle, limits=limits, activation="float32")

    assert [group.window for group in runner(1, 5).groups] == [None, 11]
    found = under_load(runner(8, 8), model, requests, mixed_requests(4, VOCAB_SIZE, (3, 20), 8))
    assert found == alone(runner(1, 5), model, requests)


def test_a_seeded_answer_is_that_of_one_sequence_run_by_hand(tiny_bundle: Path, prompt_token_ids: list[int]) -> None:
    bundle = open_bundle(tiny_bundle)
    by_hand = list(
        generate(ReferenceRunner(bundle, activation="float32"), prompt_token_ids, 8, Sampler(temperature=0.9, state=17))
    )
    request = TokenRequest(prompt_token_ids, 8, Sampling(temperature=0.9, seed=17))
    runner = ReferenceRunner(bundle, limits=Limits(tokens=32, sequences=2, rows=2), activation="float32")
    assert alone(runner, TokenModel.of(bundle.manifest), [request]) == [(by_hand, "length")]
