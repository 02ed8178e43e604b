"""The engine loop over the hash model: steps that run ahead, overhead, and failures of a step or of the device."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import pytest
from engine_requests import LIMITS, OTHERS, PROMPT, collect, engine_on, ids, require_no_page_held, run, settle
from hash_model import answer_of
from hash_runner import HashRunner
from waiting import WAIT_SECONDS

from nearfar.compiler.bundle.manifest import GENERATE
from nearfar.compiler.runtime.batch import Batch
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.compiler.runtime.runner import Limits, Output
from nearfar.server_fallback.engine import engine_loop, runner_calls
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.request import GeneratedToken, TokenRequest


def test_steps_run_ahead_of_what_is_read() -> None:
    async def work() -> None:
        runner = HashRunner(LIMITS, threaded=True)
        async with engine_on(runner) as engine:
            assert await ids(engine, max_tokens=12) == answer_of(PROMPT, 12, 64)[0]
        assert sum(len(batch.token_ids) == 1 and batch.token_ids[0] < 0 for batch in runner.batches) > 2

    run(work())


def test_a_lookahead_of_one_reads_every_token_first() -> None:
    async def work() -> None:
        runner = HashRunner(LIMITS)
        async with engine_on(runner, EngineConfig(lookahead=1)) as engine:
            assert await ids(engine) == answer_of(PROMPT, 6, 64)[0]
        assert all((batch.token_ids >= 0).all() for batch in runner.batches)

    run(work())


def test_a_model_that_gathers_rows_reads_every_token_first_whatever_the_lookahead() -> None:
    async def work() -> None:
        runner = HashRunner(LIMITS, threaded=True)
        async with engine_on(runner, EngineConfig(lookahead=4), gathers=True) as engine:
            assert await ids(engine, max_tokens=12) == answer_of(PROMPT, 12, 64)[0]
        assert all((batch.token_ids >= 0).all() for batch in runner.batches)

    run(work())


class WaitingForTheCaller(HashRunner):
    """Computes in `submit`, from the third step on only when the caller has received a token."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.received = threading.Event()

    def submit(self, batch: Batch, plan: str = GENERATE) -> Future[Output]:
        assert len(self.batches) < 2 or self.received.wait(WAIT_SECONDS), "the last step's token was not delivered"
        return super().submit(batch, plan)


def test_a_runner_that_computes_in_submit_gets_its_next_step_after_the_last_tokens_are_delivered() -> None:
    async def work() -> None:
        runner = WaitingForTheCaller(replace(LIMITS, tokens=16))
        async with engine_on(runner) as engine:
            tokens = []
            async for item in engine.generate(TokenRequest(PROMPT, max_tokens=6)):
                runner.received.set()
                tokens += [item.token_id] if isinstance(item, GeneratedToken) else []
            assert tokens == answer_of(PROMPT, 6, 64)[0]

    run(work())


def test_the_overhead_includes_delivery_and_leaves_out_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the device moves the loop's clock, and delivery has its own."""
    now = 0.0
    for module in (engine_loop, runner_calls):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now, monotonic=time.monotonic))

    class SlowDevice(HashRunner):
        def submit(self, batch: Batch, plan: str = GENERATE) -> Future[Output]:
            nonlocal now
            now += 1000.0
            return super().submit(batch, plan)

    async def work() -> None:
        async with engine_on(SlowDevice(LIMITS)) as engine:
            await ids(engine, max_tokens=3)
            stats, delivery = engine.stats(), engine._loop._outbox.delivery_seconds
            assert 0 < delivery == pytest.approx(stats.overhead_seconds)
            assert stats.overhead_seconds < 1000 * stats.steps

    run(work())


def test_a_failed_step_fails_its_answers_and_the_others_go_on_with_the_same_tokens() -> None:
    async def work() -> None:
        def fail(number: int) -> Exception | None:
            return DeviceError("out of memory") if number == 4 else None

        async with engine_on(HashRunner(replace(LIMITS, sequences=1), threaded=True, fail=fail)) as engine:
            failed, other = await asyncio.gather(
                collect(engine, max_tokens=12), ids(engine, OTHERS[0], max_tokens=12), return_exceptions=True
            )
            assert isinstance(failed, DeviceError)
            assert other == answer_of(OTHERS[0], 12, 64)[0]
            # The pages that the failed step wrote are not reused from the cache.
            assert await ids(engine, max_tokens=12) == answer_of(PROMPT, 12, 64)[0]
            assert engine.stats().recoveries == 1
            require_no_page_held(engine)

    run(work())


def test_a_runner_that_raises_something_else_is_a_device_that_failed() -> None:
    async def work() -> None:
        async with engine_on(
            HashRunner(LIMITS, threaded=True, fail=lambda number: OSError("bus") if number == 0 else None)
        ) as engine:
            with pytest.raises(DeviceError, match="the hash failed: OSError"):
                await collect(engine)
            assert await ids(engine) == answer_of(PROMPT, 6, 64)[0]

    run(work())


def test_a_device_that_fails_again_and_again_is_given_up() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(replace(LIMITS, sequences=1), fail=lambda _: DeviceError("gone"))) as engine:
            answers = await asyncio.gather(
                *(collect(engine, [index + 1, *PROMPT]) for index in range(6)), return_exceptions=True
            )
            assert all(isinstance(error, DeviceError) for error in answers)
            with pytest.raises(DeviceError, match="gone"):
                await collect(engine)

    run(work())


def test_logits_that_are_not_numbers_fail_one_answer_and_are_not_cached() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS, broken=9)) as engine:
            prompt = [9, *PROMPT]
            failed, other = await asyncio.gather(collect(engine, prompt), ids(engine), return_exceptions=True)
            assert isinstance(failed, DeviceError)
            assert other == answer_of(PROMPT, 6, 64)[0]
            await settle(engine)
            require_no_page_held(engine)
            assert engine._loop.scheduler.kv.prefixes.find(prompt, 8).length == 0

    run(work())
