"""The encoder engine over the hash model: shared batches, turns of clients, delays, deadlines and failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from engine_requests import LIMITS, run
from hash_model import VOCAB
from hash_runner import PAGE, HashRunner
from waiting import WAIT_SECONDS

from nearfar.compiler.runtime.batch import Batch, FloatArray
from nearfar.compiler.runtime.errors import DeadlineExceeded, DeviceError, QueueFull, RequestError, Unavailable
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.batching import Batching
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.encode_job import EncodeRequest
from nearfar.server_fallback.engine.encoder_engine import EncoderEngine
from nearfar.server_fallback.engine.encoder_model import EncoderModel

DECODER = EncoderModel(VOCAB, 24, PAGE)
ENCODER = EncoderModel(VOCAB, 16, None, num_token_types=2)


class WholeRunner:
    """A model without pages: a text's row is the sum of its tokens, their number, and the sum of its types. ``hold``
    keeps it in a batch until it is set. The row of a text that begins with ``broken`` is no numbers.
    """

    def __init__(
        self,
        limits: Limits = LIMITS,
        fail: Callable[[int], Exception | None] = lambda _: None,
        *,
        per_token: bool = False,
        broken: int | None = None,
    ) -> None:
        self.per_token, self.broken = per_token, broken
        self.limits, self.groups, self.device, self.closed = limits, (), "the sum", False
        self.batches: list[list[list[int]]] = []
        self.hold = threading.Event()
        self.hold.set()
        self._fail = fail

    def embed(self, batch: Batch) -> FloatArray:
        starts = batch.seq_starts
        texts = [batch.token_ids[begin:end].tolist() for begin, end in pairwise(starts)]
        self.batches.append(texts)
        assert self.hold.wait(WAIT_SECONDS)
        if (failure := self._fail(len(self.batches) - 1)) is not None:
            raise failure
        if self.per_token:
            return np.stack([batch.token_ids, batch.positions], 1).astype(np.float32)
        assert batch.token_types is not None
        types = np.add.reduceat(batch.token_types, starts[:-1])
        rows = np.array([[sum(text), len(text), of] for text, of in zip(texts, types, strict=True)], np.float32)
        rows[[text[0] == self.broken for text in texts]] = np.nan
        return rows

    def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def engine_on(
    runner: HashRunner | WholeRunner, model: EncoderModel, config: EngineConfig | None = None, **batching: Any
) -> AsyncIterator[EncoderEngine]:
    config = replace(config or EngineConfig(), batching=Batching(**batching))
    engine = EncoderEngine(runner, model, config)
    try:
        yield engine
    finally:
        await engine.close()
        assert runner.closed


async def encode(engine: EncoderEngine, texts: Sequence[Sequence[int]], **request: Any) -> list[list[float]]:
    rows: list[list[float]] = (await engine.encode(EncodeRequest(texts, **request))).tolist()
    return rows


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


def test_texts_of_all_callers_share_batches_and_come_back_in_order() -> None:
    async def work() -> None:
        runner = HashRunner(Limits(tokens=8, sequences=3, rows=2, pages=8))
        async with engine_on(runner, DECODER) as engine:
            texts = [[[index + 1] * length for length in (1, 20, 3, 8)] for index in range(3)]
            for own, rows in zip(texts, await asyncio.gather(*(encode(engine, each) for each in texts)), strict=True):
                assert rows == [[sum(ids), len(ids), ids[-1]] for ids in own]
            assert any(len(batch.seq_starts) > 2 for batch in runner.batches)
            abandoned = asyncio.ensure_future(encode(engine, [[1] * 20] * 40))
            await asyncio.sleep(0)
            abandoned.cancel()
            await asyncio.gather(abandoned, return_exceptions=True)
            assert await encode(engine, [[2, 3]]) == [[5, 2, 3]]
            wrong: list[list[list[int]]] = [[], [[]], [[VOCAB]], [[1] * 25]]
            for texts_ in wrong:
                with pytest.raises(RequestError):
                    await encode(engine, texts_)

    run(work())


def test_a_batch_of_whole_texts_is_bounded_and_has_the_types_of_tokens() -> None:
    async def work() -> None:
        runner = WholeRunner(Limits(tokens=16, sequences=3, rows=3))
        async with engine_on(runner, ENCODER) as engine:
            texts = [[1] * length for length in (5, 9, 4, 16, 1, 1, 1, 1)]
            types = [[0, *[1] * (len(text) - 1)] for text in texts]
            rows = await encode(engine, texts, token_types=types)
            assert rows == [[len(text), len(text), len(text) - 1] for text in texts]
            assert [list(map(len, batch)) for batch in runner.batches] == [[5, 9], [4], [16], [1, 1, 1], [1]]
            for wrong in ([[0]], [[2] * 3], [[-1, 0, 0]]):
                with pytest.raises(RequestError, match="token type"):
                    await encode(engine, [[1, 2, 3]], token_types=wrong)
            stats = engine.stats()
            assert stats.batches is not None
            assert (stats.batches.texts.total, stats.batches.texts.count, stats.batches.tokens.total) == (8, 5, 38)
            assert (stats.running, stats.waiting, stats.computed_tokens) == (0, 0, 38)
            assert stats.batches.queue_seconds.count == 8
        tokens = WholeRunner(per_token=True)
        async with engine_on(tokens, replace(ENCODER, per_token=True)) as engine:
            assert await encode(engine, [[7], [5, 6]]) == [[7, 0], [5, 0], [6, 1]]

    run(work())


def test_clients_take_turns_by_tokens_and_higher_priorities_come_first() -> None:
    async def work() -> None:
        runner = WholeRunner(Limits(tokens=16, sequences=1, rows=1))
        async with engine_on(runner, ENCODER) as engine:
            runner.hold.clear()
            first = asyncio.ensure_future(encode(engine, [[9]]))
            await until(lambda: len(runner.batches) == 1)
            greedy = asyncio.ensure_future(encode(engine, [[1] * 4] * 4, client="a"))
            late = asyncio.ensure_future(encode(engine, [[2] * 2] * 4, client="b"))
            urgent = asyncio.ensure_future(encode(engine, [[3]], client="a", priority=1))
            await until(lambda: engine.stats().waiting == 3)
            runner.hold.set()
            await asyncio.gather(first, greedy, late, urgent)
            assert [batch[0][0] for batch in runner.batches] == [9, 3, 2, 1, 2, 2, 1, 2, 1, 1]

    run(work())


def test_a_batch_waits_for_a_preferred_size_or_the_delay() -> None:
    async def work() -> None:
        runner = WholeRunner(Limits(tokens=16, sequences=8, rows=8))
        async with engine_on(runner, ENCODER, max_delay_seconds=30.0, preferred_sizes=(3,)) as engine:
            jobs = [asyncio.ensure_future(encode(engine, [[index + 1]])) for index in range(2)]
            await asyncio.sleep(0.02)
            assert runner.batches == []
            await encode(engine, [[3]])
            await asyncio.gather(*jobs)
            assert runner.batches == [[[1], [2], [3]]]
            await encode(engine, [[1] * 8] * 2)
            assert len(runner.batches[1]) == 2, "a full batch does not wait"
        async with engine_on(runner, ENCODER, max_delay_seconds=0.01) as engine:
            await asyncio.gather(*(encode(engine, [[index]]) for index in range(4)))
            assert len(runner.batches[2]) == 4

    run(work())


def test_texts_whose_deadline_has_passed_or_whose_caller_left_are_not_computed() -> None:
    async def work() -> None:
        runner = WholeRunner(Limits(tokens=16, sequences=1, rows=1))
        async with engine_on(runner, ENCODER, EngineConfig(max_waiting=3)) as engine:
            runner.hold.clear()
            running = asyncio.ensure_future(encode(engine, [[9]]))
            await until(lambda: len(runner.batches) == 1)
            left = asyncio.ensure_future(encode(engine, [[8]]))
            late = asyncio.ensure_future(encode(engine, [[7]], deadline=0.0))
            kept = asyncio.ensure_future(encode(engine, [[6]]))
            await until(lambda: engine.stats().waiting == 3)
            with pytest.raises(QueueFull):
                await encode(engine, [[5]])
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            runner.hold.set()
            with pytest.raises(DeadlineExceeded, match="deadline passed"):
                await late
            await asyncio.gather(running, kept)
            assert runner.batches == [[[9]], [[6]]]

    run(work())


def test_a_failure_fails_the_texts_of_its_batch_and_closing_fails_the_rest() -> None:
    async def work() -> None:
        for runner, model in (
            (HashRunner(LIMITS, fail=lambda number: DeviceError("lost") if number == 1 else None), DECODER),
            (WholeRunner(fail=lambda number: ValueError("lost") if number == 0 else None), ENCODER),
        ):
            async with engine_on(runner, model) as engine:
                with pytest.raises(DeviceError, match="lost"):
                    await encode(engine, [[1] * 8, [1] * 8])
                assert [row[:2] for row in await encode(engine, [[1] * 8])] == [[8, 8]]
                assert engine.stats().recoveries == 1
        runner = WholeRunner(Limits(tokens=8, sequences=1, rows=1))
        async with engine_on(runner, ENCODER) as engine:
            runner.hold.clear()
            jobs = [asyncio.ensure_future(encode(engine, [[1], [1]])) for _ in range(2)]
            await until(lambda: len(runner.batches) == 1 and engine.stats().waiting > 0)
            closing = asyncio.ensure_future(engine.close())
            await asyncio.sleep(0)
            runner.hold.set()
            await closing
            for job in jobs:
                with pytest.raises(Unavailable):
                    await job

    run(work())


def test_results_that_are_not_numbers_fail_their_own_job_only() -> None:
    async def work() -> None:
        runner = WholeRunner(broken=9)
        async with engine_on(runner, ENCODER, max_delay_seconds=30.0, preferred_sizes=(3,)) as engine:
            good = asyncio.ensure_future(encode(engine, [[1]]))
            with pytest.raises(DeviceError, match="the sum computed results that are not numbers"):
                await encode(engine, [[1], [9]])
            assert await good == [[1, 1, 0]]
            assert (len(runner.batches), engine.stats().recoveries) == (1, 0)

    run(work())


def test_a_device_that_fails_again_and_again_is_given_up() -> None:
    async def work() -> None:
        runner = WholeRunner(fail=lambda _: DeviceError("lost"))
        async with engine_on(runner, ENCODER) as engine:
            for _ in range(4):
                with pytest.raises(DeviceError, match="lost"):
                    await encode(engine, [[1]])
            await until(lambda: engine.stats().failure is not None)
            with pytest.raises(DeviceError, match="lost"):
                await encode(engine, [[1]])

    run(work())
