"""The token engine over the hash model: requests alone and together, cancellation, deadlines, and closing."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
from engine_requests import (
    LIMITS,
    OTHERS,
    PROMPT,
    Arrival,
    Gate,
    collect,
    engine_on,
    ids,
    require_no_page_held,
    run,
    settle,
)
from hash_model import VOCAB, answer_of
from hash_runner import MODEL, HashRunner
from waiting import WAIT_SECONDS, until

from nearfar.compiler.ir.sampling import IN_PROMPT, Sampling
from nearfar.compiler.runtime.errors import DeadlineExceeded, NearfarError, QueueFull, Unavailable
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine import engine_loop
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.request import AnswerEnd, GeneratedToken, TokenRequest
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.kv_tiers.options import KvTierOptions


def test_an_answer_is_the_models_and_ends_at_max_tokens() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            tokens, completion = await collect(engine)
            assert [token.token_id for token in tokens] == answer_of(PROMPT, 6, 64)[0]
            assert (completion.finish_reason, completion.prompt_tokens, completion.completion_tokens) == (
                "length",
                10,
                6,
            )
            assert completion.cached_tokens == 0
            assert 0 <= completion.queue_seconds <= completion.time_to_first_token_seconds <= completion.total_seconds

    run(work())


def test_a_slow_reader_gets_several_tokens_at_once_and_the_error_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = 0.0
    clock = SimpleNamespace(perf_counter=time.perf_counter, monotonic=lambda: time.monotonic() + passed)
    monkeypatch.setattr(engine_loop, "time", clock)

    async def work() -> None:
        async with engine_on(HashRunner(LIMITS, threaded=True, step_seconds=0.01)) as engine:
            batches = engine.batches(TokenRequest(PROMPT, 6))
            first = await anext(batches)
            await settle(engine)
            rest = await anext(batches)
            tokens = [item.token_id for item in (*first, *rest) if isinstance(item, GeneratedToken)]
            assert tokens == answer_of(PROMPT, 6, 64)[0]
            assert isinstance(rest[-1], AnswerEnd)
            assert len(rest) > 2

        async with engine_on(HashRunner(LIMITS, threaded=True, step_seconds=0.01)) as engine:
            batches = engine.batches(TokenRequest(PROMPT, 1000, ignore_eos=True, deadline=time.monotonic() + 1000))
            read = list[object]()

            async def read_slowly() -> None:
                nonlocal passed
                async for batch in batches:
                    read.extend(batch)
                    # Its error follows all tokens.
                    passed = 2000.0
                    await settle(engine)

            with pytest.raises(DeadlineExceeded) as raised:
                await read_slowly()
            assert f"after {len(read)} tokens" in raised.value.message

    run(work())


def test_a_second_turn_computes_new_tokens_only() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            first = await ids(engine)
            before = engine.stats()
            prompt = [*PROMPT, *first, 11, 12]
            tokens, completion = await collect(engine, prompt, max_tokens=1)
            after = engine.stats()
            assert [token.token_id for token in tokens] == answer_of(prompt, 1, 64)[0]
            # 12 of the 15 computed positions fill pages.
            assert completion.cached_tokens == 12
            assert after.computed_tokens - before.computed_tokens == len(prompt) - 12
            assert (after.prefix_queries, after.prefix_hits) == (len(PROMPT) + len(prompt), 12)

    run(work())


def test_answers_to_one_prompt_compute_it_once_even_its_last_page() -> None:
    async def work() -> None:
        arrival = Arrival()
        runner = HashRunner(Limits(tokens=64, sequences=8, rows=8, pages=40), threaded=True, fail=arrival)
        async with engine_on(runner) as engine:
            answers = await arrival.gather(
                *(collect(engine, sampling=Sampling(temperature=1, seed=seed)) for seed in range(5))
            )
            assert [completion.cached_tokens for _, completion in answers] == [0, 9, 9, 9, 9]
            prompts = [batch for batch in runner.batches if (batch.token_ids >= 0).any()]
            # The prompt, then its last token once for each of the other answers.
            assert sum(int((batch.token_ids >= 0).sum()) for batch in prompts) == 10 + 4
            assert runner.copies == 4
            await settle(engine)
            require_no_page_held(engine)
            for seed, (tokens, _) in enumerate(answers):
                assert [token.token_id for token in tokens] == await ids(
                    engine, sampling=Sampling(temperature=1, seed=seed)
                )

    run(work())


def test_those_that_wait_for_a_prompt_go_on_without_the_one_that_computes_it() -> None:
    async def work() -> None:
        prompt = [1 + i % 15 for i in range(40)]
        async with engine_on(HashRunner(LIMITS, threaded=True, hold=(gate := Gate()))) as engine:
            first = engine.generate(TokenRequest(prompt, max_tokens=4))
            one = asyncio.ensure_future(anext(first))
            others = [asyncio.ensure_future(ids(engine, prompt)) for _ in range(2)]
            await until(lambda: engine.stats().running + engine.stats().waiting == 3)
            one.cancel()
            gate.open()
            await asyncio.gather(one, return_exceptions=True)
            for answer in await asyncio.gather(*others):
                assert answer == answer_of(prompt, 6, 64)[0]

    run(work())


def test_simultaneous_requests_share_steps_and_get_the_same_answers_as_alone() -> None:
    async def work() -> None:
        arrival = Arrival()
        runner = HashRunner(LIMITS, threaded=True, fail=arrival)
        async with engine_on(runner) as engine:
            prompts = [PROMPT, *OTHERS]
            answers = await arrival.gather(*(ids(engine, prompt, max_tokens=12) for prompt in prompts))
            for prompt, answer in zip(prompts, answers, strict=True):
                assert answer == answer_of(prompt, 12, 64)[0]
        assert max(len(batch.seq_starts) - 1 for batch in runner.batches) == 3

    run(work())


def test_answers_go_to_several_event_loops() -> None:
    runner = HashRunner(LIMITS, threaded=True)
    engine = TokenEngine(runner, MODEL)
    found: dict[int, list[int]] = {}

    def ask(index: int) -> None:
        found[index] = run(ids(engine, [1 + index, *PROMPT]))

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run(engine.close())
    assert found == {index: answer_of([1 + index, *PROMPT], 6, 64)[0] for index in range(3)}


def test_an_event_loop_that_closes_in_the_middle_ends_its_answers() -> None:
    engine = TokenEngine(HashRunner(LIMITS, threaded=True, step_seconds=0.002), MODEL)
    loop = asyncio.new_event_loop()
    answer = engine.generate(TokenRequest(PROMPT, max_tokens=40))
    loop.run_until_complete(anext(answer))
    loop.close()

    async def work() -> None:
        await settle(engine)
        assert await ids(engine) == answer_of(PROMPT, 6, 64)[0]
        require_no_page_held(engine)
        await engine.close()

    run(work())


def test_closing_the_generator_frees_pages_at_the_next_step() -> None:
    async def work() -> None:
        gate = Gate()
        # A few tokens come before the gate.
        runner = HashRunner(LIMITS, threaded=True, hold=lambda step: None if step < 8 else gate(step))
        async with engine_on(runner) as engine:
            answer = engine.generate(TokenRequest(PROMPT, max_tokens=40))
            await anext(answer)
            await answer.aclose()
            gate.open()
            await settle(engine)
            require_no_page_held(engine)
            assert engine.stats().generated_tokens < 40

    run(work())


def test_a_task_that_is_cancelled_before_its_first_token_leaves_nothing_behind() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS, threaded=True, hold=(gate := Gate()))) as engine:
            task = asyncio.ensure_future(collect(engine))
            await until(lambda: engine.stats().running == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.open()
            await settle(engine)
            require_no_page_held(engine)

    run(work())


def test_the_computed_part_of_an_aborted_prompt_is_reused() -> None:
    runner = HashRunner(LIMITS, threaded=True, step_seconds=0.005)
    prompt = PROMPT * 5

    async def work() -> None:
        async with engine_on(runner) as engine:
            task = asyncio.ensure_future(collect(engine, prompt))
            while len(runner.batches) < 2:
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await settle(engine)
            tokens, end = await collect(engine, prompt)
            assert end.cached_tokens >= 2 * LIMITS.tokens
            assert ([token.token_id for token in tokens], end.finish_reason) == answer_of(prompt, 6, 64)

    run(work())


def test_a_deadline_ends_a_running_answer_and_one_that_waits() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(replace(LIMITS, sequences=1), threaded=True, step_seconds=0.003)) as engine:
            soon = time.monotonic() + 0.03
            answers = [collect(engine, max_tokens=50, deadline=soon), collect(engine, OTHERS[0], deadline=soon)]
            for error in await asyncio.gather(*answers, return_exceptions=True):
                assert isinstance(error, DeadlineExceeded)
            await settle(engine)
            require_no_page_held(engine)
            with pytest.raises(DeadlineExceeded):
                await collect(engine, deadline=time.monotonic() - 1)
            assert await ids(engine) == answer_of(PROMPT, 6, 64)[0]

    run(work())


def test_a_full_queue_refuses_requests_and_accepts_them_again_later() -> None:
    async def work() -> None:
        runner = HashRunner(replace(LIMITS, sequences=2), threaded=True, hold=(gate := Gate()))
        async with engine_on(runner, EngineConfig(max_waiting=3)) as engine:
            answers = [asyncio.ensure_future(ids(engine, [index + 1, *PROMPT])) for index in range(5)]
            await asyncio.sleep(0)
            with pytest.raises(QueueFull, match="5 requests"):
                await collect(engine)
            gate.open()
            for index, answer in enumerate(await asyncio.gather(*answers)):
                assert answer == answer_of([index + 1, *PROMPT], 6, 64)[0]
            assert await ids(engine) == answer_of(PROMPT, 6, 64)[0]

    run(work())


# The second answer would take ten seconds.
@pytest.mark.parametrize(("max_tokens", "drain_seconds"), [(4, WAIT_SECONDS), (50, 0.05)])
def test_close_waits_for_answers_for_the_drain_time_and_fails_the_rest(max_tokens: int, drain_seconds: float) -> None:
    async def work() -> None:
        runner = HashRunner(LIMITS, threaded=True, step_seconds=0.02 if max_tokens == 4 else 0.2)
        engine = TokenEngine(runner, MODEL)
        answer = asyncio.ensure_future(ids(engine, OTHERS[1], max_tokens=max_tokens))
        await asyncio.sleep(0.002)
        closing = asyncio.ensure_future(engine.close(drain_seconds=drain_seconds))
        await asyncio.sleep(0.002)
        with pytest.raises(Unavailable, match="unloaded"):
            await collect(engine)
        await closing
        if drain_seconds == WAIT_SECONDS:
            assert await answer == answer_of(OTHERS[1], 4, 64)[0]
        else:
            with pytest.raises(Unavailable):
                await answer
        assert runner.closed
        await engine.close()

    run(work())


def test_penalties_and_biases_reach_the_slot_and_log_probabilities_come_back() -> None:
    async def work() -> None:
        runner = HashRunner(LIMITS)
        sampling = Sampling(repetition_penalty=2, logit_bias={3: 2.5, 4: 1})
        async with engine_on(runner) as engine:
            tokens, _ = await collect(engine, sampling=sampling, logprobs=2, max_tokens=2)
            counts = runner._states["token_counts"][0]
            assert counts[PROMPT[0]] >= IN_PROMPT
            assert runner._states["logit_bias"][0].tolist() == [0, 0, 0, 2.5, 1, *[0] * (VOCAB - 5)]
            assert runner.batches[-1].sample_slots.tolist() == [[0, 3]]
            assert tokens[0].logprob == -tokens[0].token_id
            assert [entry.token_id for entry in tokens[0].alternatives] == [0, 1]
            plain, _ = await collect(engine, logprobs=0, max_tokens=1)
            assert plain[0].logprob == -plain[0].token_id
            assert plain[0].alternatives == ()
            await collect(engine, max_tokens=1)
            assert not runner.batches[-1].logprobs

    run(work())


def test_an_engine_without_requests_closes() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            assert engine.stats().steps == 0

    run(work())


def test_a_closed_engine_reports_the_reason_passed_to_close() -> None:
    async def work() -> None:
        engine = TokenEngine(HashRunner(LIMITS), MODEL)
        await engine.close(reason=NearfarError("gone fishing"))
        with pytest.raises(NearfarError, match="gone fishing"):
            await collect(engine)

    run(work())


@pytest.mark.parametrize("tiers", [KvTierOptions(), KvTierOptions(host_memory_bytes=1 << 20)], ids=["plain", "tiers"])
def test_a_closed_engine_is_freed_without_a_garbage_collection(tiers: KvTierOptions) -> None:
    """With its runner, whose bundle may be large."""

    async def work() -> None:
        runner = HashRunner(LIMITS, threaded=True)
        engine = TokenEngine(runner, MODEL, EngineConfig(kv_tiers=tiers))
        held = [weakref.ref(each) for each in (runner, engine, engine._loop)]
        gc.disable()
        try:
            assert await ids(engine) == await ids(engine)
            pages = await engine.read_prefix(PROMPT)
            await engine.reset_prefix_cache()
            assert await engine.write_prefix(pages) == len(pages.token_ids)
            await engine.close()
            del engine, runner
            await until(lambda: [each() for each in held] == [None] * 3)
        finally:
            gc.enable()

    run(work())
