"""The token engine over the hash model: what requests get, alone and together, and what happens when something ends early or fails."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
from hash_model import STOP, VOCAB, answer_of
from hash_runner import MODEL, HashRunner

from nearfar.compiler.errors import DeadlineExceeded, DeviceError, NearfarError, QueueFull, RequestError, Unavailable
from nearfar.compiler.ir.sampling import IN_PROMPT
from nearfar.compiler.runtime.batch import Batch, Limits, Output
from nearfar.server_fallback.engine.check_request import check_request
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.request import Completion, GeneratedToken, Sampling, TokenRequest
from nearfar.server_fallback.engine.token_engine import TokenEngine

T = TypeVar("T")
LIMITS = Limits(tokens=8, sequences=4, rows=4, pages=24)
# Their answers are long, by the hash model.
PROMPT = [13, 2, 3, 13, 10, 1, 5, 13, 1, 14]
OTHERS = [[10, 12, 15], [15, 7, 12, 13]]


def run(work: Awaitable[T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(work, 20)

    return asyncio.run(bounded())


@asynccontextmanager
async def engine_on(runner: HashRunner, config: EngineConfig | None = None, **model: Any) -> AsyncIterator[TokenEngine]:
    engine = TokenEngine(runner, replace(MODEL, **model), config)
    try:
        yield engine
    finally:
        await engine.close()
        assert runner.closed


async def collect(
    engine: TokenEngine, prompt: list[int] = PROMPT, **request: Any
) -> tuple[list[GeneratedToken], Completion]:
    tokens: list[GeneratedToken] = []
    async for news in engine.generate(TokenRequest(prompt, **{"max_tokens": 6, **request})):
        if isinstance(news, Completion):
            return tokens, news
        assert isinstance(news, GeneratedToken)
        tokens.append(news)
    raise AssertionError("the answer has no end")


async def ids(engine: TokenEngine, prompt: list[int] = PROMPT, **request: Any) -> list[int]:
    return [token.token_id for token in (await collect(engine, prompt, **request))[0]]


async def settle(engine: TokenEngine) -> None:
    """Wait until nothing runs."""
    while engine.stats().running or engine.stats().waiting:
        await asyncio.sleep(0.001)


def require_no_page_held(engine: TokenEngine) -> None:
    kv = engine._loop.scheduler.kv
    assert kv.pool.free + len(kv.prefixes) == kv.pool.size
    assert kv.prefixes.evictable == len(kv.prefixes)


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


def test_a_stop_token_ends_the_answer_and_is_not_told() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            whole = await ids(engine)
            tokens, completion = await collect(engine, stop_token_ids=frozenset({whole[2]}))
            assert [token.token_id for token in tokens] == whole[: whole.index(whole[2])]
            assert completion.finish_reason == "stop"

    run(work())


def test_a_last_token_ends_the_answer_and_is_told() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            whole = await ids(engine)
            tokens, completion = await collect(engine, last_token_ids=frozenset({whole[2]}))
            assert [token.token_id for token in tokens] == whole[: whole.index(whole[2]) + 1]
            assert (completion.finish_reason, completion.completion_tokens) == ("stop", len(tokens))

    run(work())


def test_no_end_comes_before_min_tokens_and_the_steps_still_run_ahead() -> None:
    async def work() -> None:
        runner = HashRunner(LIMITS, threaded=True)
        async with engine_on(runner) as engine:
            whole = await ids(engine)
            ends = frozenset({whole[1], whole[3]})
            for name in ("stop_token_ids", "last_token_ids"):
                tokens, completion = await collect(engine, PROMPT, max_tokens=20, min_tokens=8, **{name: ends})
                got = [token.token_id for token in tokens]
                assert len(got) >= 8
                assert not ends & set(got[:8])
                # From there on it is as if the answer had none.
                following = await ids(engine, [*PROMPT, *got[:8]], max_tokens=12, **{name: ends})
                assert got[8:] == following
                assert completion.finish_reason in ("stop", "length")
        assert sum(len(batch.token_ids) == 1 and batch.token_ids[0] < 0 for batch in runner.batches) > 2

    run(work())


def test_the_models_end_is_a_token_like_any_other_if_it_is_ignored() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            prompt = OTHERS[0]
            stopped, end = await collect(engine, prompt, max_tokens=40)
            assert end.finish_reason == "stop"
            tokens, completion = await collect(engine, prompt, max_tokens=40, ignore_eos=True)
            got = [token.token_id for token in tokens]
            assert got[: len(stopped) + 1] == [*(token.token_id for token in stopped), STOP]
            assert (len(got), completion.finish_reason) == (40, "length")
            # Until min_tokens it does not come all the same, as in vLLM.
            assert STOP not in (await ids(engine, prompt, max_tokens=40, ignore_eos=True, min_tokens=40))

    run(work())


@pytest.mark.parametrize(("complete", "reason"), [(True, "stop"), (False, "length")])
def test_an_answer_that_is_whole_at_max_tokens_is_not_cut(complete: bool, reason: str) -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            tokens, completion = await collect(engine, constraint=EvenTokens(complete=complete), max_tokens=3)
            assert (len(tokens), completion.finish_reason) == (3, reason)

    run(work())


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


def test_a_second_turn_computes_new_tokens_only() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            first = await ids(engine)
            before = engine.stats()
            prompt = [*PROMPT, *first, 11, 12]
            tokens, completion = await collect(engine, prompt, max_tokens=1)
            after = engine.stats()
            assert [token.token_id for token in tokens] == answer_of(prompt, 1, 64)[0]
            # Of 15 computed positions 12 fill pages.
            assert completion.cached_tokens == 12
            assert after.computed_tokens - before.computed_tokens == len(prompt) - 12
            assert (after.prefix_queries, after.prefix_hits) == (len(PROMPT) + len(prompt), 12)

    run(work())


def test_answers_to_one_prompt_compute_it_once_even_its_last_page() -> None:
    async def work() -> None:
        runner = HashRunner(Limits(tokens=64, sequences=8, rows=8, pages=40), threaded=True, step_seconds=0.002)
        async with engine_on(runner) as engine:
            answers = await asyncio.gather(
                *(collect(engine, sampling=Sampling(temperature=1, seed=seed)) for seed in range(5))
            )
            assert [completion.cached_tokens for _, completion in answers] == [0, 9, 9, 9, 9]
            prompts = [batch for batch in runner.batches if (batch.token_ids >= 0).any()]
            # The prompt, then its last token once for each of the others.
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
        async with engine_on(HashRunner(LIMITS, step_seconds=0.002, threaded=True)) as engine:
            first = engine.generate(TokenRequest(prompt, max_tokens=4))
            one = asyncio.ensure_future(anext(first))
            others = [asyncio.ensure_future(ids(engine, prompt)) for _ in range(2)]
            await asyncio.sleep(0.004)
            one.cancel()
            await asyncio.gather(one, return_exceptions=True)
            for answer in await asyncio.gather(*others):
                assert answer == answer_of(prompt, 6, 64)[0]

    run(work())


def test_requests_made_at_once_share_steps_and_are_answered_as_each_alone() -> None:
    async def work() -> None:
        runner = HashRunner(LIMITS, threaded=True, step_seconds=0.002)
        async with engine_on(runner) as engine:
            prompts = [PROMPT, *OTHERS]
            for prompt, answer in zip(
                prompts, await asyncio.gather(*(ids(engine, prompt, max_tokens=12) for prompt in prompts)), strict=True
            ):
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


class WaitingForTheCaller(HashRunner):
    """Computes in `submit`, from the third step on only when the caller has received a token."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.received = threading.Event()

    def submit(self, batch: Batch) -> Future[Output]:
        assert len(self.batches) < 2 or self.received.wait(10), "the last step's token was not delivered"
        return super().submit(batch)


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


def test_the_overhead_includes_delivery_and_leaves_out_the_device() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS, threaded=True, step_seconds=0.02)) as engine:
            await ids(engine)
            stats, delivery = engine.stats(), engine._loop._outbox.delivery_seconds
            assert 0 < delivery < stats.overhead_seconds
            assert stats.overhead_seconds_per_step < 0.02

    run(work())


def test_closing_the_generator_frees_pages_at_the_next_step() -> None:
    async def work() -> None:
        runner = HashRunner(LIMITS, threaded=True, step_seconds=0.003)
        async with engine_on(runner) as engine:
            answer = engine.generate(TokenRequest(PROMPT, max_tokens=40))
            await anext(answer)
            await answer.aclose()
            await settle(engine)
            require_no_page_held(engine)
            assert engine.stats().generated_tokens < 40

    run(work())


def test_a_task_that_is_cancelled_before_its_first_token_leaves_nothing_behind() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS, threaded=True, step_seconds=0.005)) as engine:
            task = asyncio.ensure_future(collect(engine))
            await asyncio.sleep(0.002)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await settle(engine)
            require_no_page_held(engine)

    run(work())


def test_what_was_computed_of_a_prompt_that_was_broken_off_is_found_again() -> None:
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


def test_a_full_queue_refuses_and_takes_again_later() -> None:
    async def work() -> None:
        runner = HashRunner(replace(LIMITS, sequences=2), threaded=True, step_seconds=0.005)
        async with engine_on(runner, EngineConfig(max_waiting=3)) as engine:
            answers = [asyncio.ensure_future(ids(engine, [index + 1, *PROMPT])) for index in range(5)]
            await asyncio.sleep(0)
            with pytest.raises(QueueFull, match="5 requests"):
                await collect(engine)
            for index, answer in enumerate(await asyncio.gather(*answers)):
                assert answer == answer_of([index + 1, *PROMPT], 6, 64)[0]
            assert await ids(engine) == answer_of(PROMPT, 6, 64)[0]

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
            # What the failed step wrote is not taken from the cache.
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
            assert engine._loop.scheduler.kv.prefixes.match(prompt, 2) == []

    run(work())


def test_close_waits_for_answers_as_long_as_it_is_told_and_fails_the_rest() -> None:
    async def work() -> None:
        runner = HashRunner(LIMITS, threaded=True, step_seconds=0.01)
        engine = TokenEngine(runner, MODEL)
        short, long = (
            asyncio.ensure_future(ids(engine, max_tokens=4)),
            asyncio.ensure_future(ids(engine, OTHERS[1], max_tokens=60)),
        )
        await asyncio.sleep(0.002)
        closing = asyncio.ensure_future(engine.close(drain_seconds=0.25))
        await asyncio.sleep(0.002)
        with pytest.raises(Unavailable, match="unloaded"):
            await collect(engine)
        await closing
        assert await short == answer_of(PROMPT, 4, 64)[0]
        with pytest.raises(Unavailable):
            await long
        assert runner.closed
        await engine.close()

    run(work())


def test_a_full_context_ends_an_answer_or_the_oldest_tokens_make_way() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(replace(LIMITS, pages=4)), context=40) as engine:
            # The pages hold less than the model could.
            assert engine.context == 16
            tokens, completion = await collect(engine, max_tokens=30)
            assert (len(tokens), completion.finish_reason) == (7, "length")
            shifted = await ids(engine, max_tokens=30, when_full=4)
            assert shifted[:7] == [token.token_id for token in tokens]
            assert len(shifted) > 7
            long = [1 + index % 15 for index in range(40)]
            with pytest.raises(RequestError, match=r"maximum context length is 16 tokens. However, .* has 40 tokens"):
                await ids(engine, long)
            assert len(await ids(engine, long, when_full=4)) == 6

    run(work())


@dataclass(slots=True, weakref_slot=True)
class EvenTokens:
    """Even tokens only, but not the stop token; four of them."""

    accepted: list[int] = field(default_factory=list)
    complete: bool = False

    def mask(self) -> npt.NDArray[np.int32] | None:
        return np.array([0b0101_0101_0101_0100], np.int32)

    def accept(self, token_id: int) -> None:
        self.accepted.append(token_id)

    @property
    def finished(self) -> bool:
        return len(self.accepted) == 4


def test_a_constraints_mask_holds_for_each_token_and_its_end_ends_the_answer() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS, threaded=True)) as engine:
            constraint = EvenTokens()
            (tokens, completion), other = await asyncio.gather(
                collect(engine, constraint=constraint, max_tokens=20), ids(engine, OTHERS[0])
            )
            assert [token.token_id for token in tokens] == constraint.accepted
            assert all(token % 2 == 0 and token > 0 for token in constraint.accepted)
            assert (len(tokens), completion.finish_reason) == (4, "stop")
            assert other == answer_of(OTHERS[0], 6, 64)[0]

    run(work())


def test_a_constrained_answer_beside_a_few_others_has_a_row_in_every_step() -> None:
    async def work() -> None:
        runner = HashRunner(LIMITS, threaded=True, step_seconds=0.003)
        # A busy machine must not make a mask late.
        async with engine_on(runner, EngineConfig(max_mask_wait_seconds=5)) as engine:
            other = asyncio.ensure_future(ids(engine, OTHERS[0], max_tokens=12))
            await ids(engine, constraint=EvenTokens(), max_tokens=20)
            assert await other == answer_of(OTHERS[0], 12, 64)[0]
        masked = [bool((batch.sample_slots[:, 1] & 4).any()) for batch in runner.batches]
        first = masked.index(True)
        assert masked[first : first + 4] == [True] * 4

    run(work())


def test_answers_that_ended_in_time_are_not_held_until_their_deadline() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            constraints = []
            for index in range(80):
                constraint = EvenTokens()
                constraints.append(weakref.ref(constraint))
                await ids(
                    engine, OTHERS[index % 2], constraint=constraint, max_tokens=1, deadline=time.monotonic() + 1000
                )
            del constraint
            await settle(engine)
            assert len(engine._loop._deadlines) == 0
            assert len(engine._loop._deadlines._heap) <= 68
            # The states of a parser can be large, so they must not wait for the garbage collector. The loop's variables keep the last one.
            assert [reference() for reference in constraints[:-1]] == [None] * 79

    run(work())


@dataclass(slots=True)
class Failing(EvenTokens):
    what: str = ""

    def mask(self) -> npt.NDArray[np.int32] | None:
        if self.what == "mask":
            raise RequestError("no way on")
        return None

    def accept(self, token_id: int) -> None:  # noqa: ARG002
        if self.what == "accept":
            raise RequestError("no way on")


@pytest.mark.parametrize("what", ["mask", "accept"])
def test_a_constraint_that_fails_takes_its_own_answer_with_it_and_no_other(what: str) -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            failed, other = await asyncio.gather(
                collect(engine, constraint=Failing(what=what)), ids(engine, OTHERS[0]), return_exceptions=True
            )
            assert isinstance(failed, RequestError)
            assert other == answer_of(OTHERS[0], 6, 64)[0]

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


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        ({"prompt_ids": []}, "prompt_ids"),
        ({"prompt_ids": [VOCAB]}, "prompt_ids"),
        ({"prompt_ids": [1, -1]}, "prompt_ids"),
        ({"prompt_ids": [1.5]}, "prompt_ids"),
        ({"prompt_ids": [[1], [1, 2]]}, "prompt_ids"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"last_token_ids": frozenset({-1})}, "stop_token_ids"),
        ({"min_tokens": 7, "max_tokens": 6}, "min_tokens"),
        ({"min_tokens": 1, "drafts": [1]}, "drafts"),
        ({"stop_token_ids": frozenset({VOCAB})}, "stop_token_ids"),
        ({"adapter": "french"}, "adapter"),
        ({"priority": float("nan")}, "priority"),
        ({"sampling": Sampling(temperature=-1)}, "temperature"),
        ({"sampling": Sampling(temperature="warm")}, "temperature"),  # type: ignore[arg-type]
        ({"sampling": Sampling(top_k=-1)}, "top_k"),
        ({"sampling": Sampling(top_p=0)}, "top_p"),
        ({"sampling": Sampling(min_p=1)}, "min_p"),
        ({"sampling": Sampling(repetition_penalty=0)}, "repetition_penalty"),
        ({"sampling": Sampling(frequency_penalty=float("inf"))}, "frequency_penalty"),
        ({"sampling": Sampling(presence_penalty=float("nan"))}, "presence_penalty"),
        ({"sampling": Sampling(seed=-1)}, "seed"),
        ({"sampling": Sampling(seed=1 << 32)}, "seed"),
        ({"sampling": Sampling(logit_bias={VOCAB: 1})}, "logit_bias"),
        ({"sampling": Sampling(logit_bias={1: float("nan")})}, "logit_bias"),
        ({"when_full": 33}, "when_full"),
    ],
)
def test_what_cannot_be_answered_is_refused_naming_the_parameter(request_: dict[str, Any], param: str) -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            with pytest.raises(RequestError) as caught:
                await anext(engine.generate(TokenRequest(**{"prompt_ids": PROMPT, **request_})))
            assert caught.value.details["param"] == param

    run(work())


def test_embeddings_of_all_callers_share_batches_and_come_back_in_order() -> None:
    async def work() -> None:
        runner = HashRunner(Limits(tokens=8, sequences=3, rows=2, pages=8))
        async with engine_on(runner, embeds=True, context=24) as engine:
            texts = [[[index + 1] * length for length in (1, 20, 3, 8)] for index in range(3)]
            for own, vectors in zip(texts, await asyncio.gather(*(engine.embed(each) for each in texts)), strict=True):
                assert vectors.tolist() == [[sum(ids), len(ids), ids[-1]] for ids in own]
            assert any(len(batch.seq_starts) > 2 for batch in runner.batches)
            abandoned = asyncio.ensure_future(engine.embed([[1] * 20] * 40))
            await asyncio.sleep(0)
            abandoned.cancel()
            await asyncio.gather(abandoned, return_exceptions=True)
            assert (await engine.embed([[2, 3]])).tolist() == [[5, 2, 3]]
            inputs: list[list[list[int]]] = [[], [[]], [[VOCAB]], [[1] * 25]]
            for wrong in inputs:
                with pytest.raises(RequestError):
                    await engine.embed(wrong)
            with pytest.raises(RequestError, match="generates no text"):
                await collect(engine)

    run(work())


def test_a_failure_while_embedding_fails_the_texts_of_its_batch() -> None:
    async def work() -> None:
        runner = HashRunner(LIMITS, fail=lambda number: DeviceError("lost") if number == 1 else None)
        async with engine_on(runner, embeds=True) as engine:
            with pytest.raises(DeviceError, match="lost"):
                await engine.embed([[1] * 20])
            assert (await engine.embed([[1] * 20])).tolist() == [[20, 20, 1]]
        async with engine_on(HashRunner(LIMITS)) as engine:
            with pytest.raises(RequestError, match="makes no embeddings"):
                await engine.embed([[1]])

    run(work())


def test_an_engine_that_nobody_asked_anything_closes() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            assert engine.stats().steps == 0
            assert engine.stats().overhead_seconds_per_step == 0
            assert engine.stats().acceptance_rate == 0

    run(work())


def test_the_stop_reason_of_a_closed_engine_is_the_one_given() -> None:
    async def work() -> None:
        engine = TokenEngine(HashRunner(LIMITS), MODEL)
        await engine.close(reason=NearfarError("gone fishing"))
        with pytest.raises(NearfarError, match="gone fishing"):
            await collect(engine)

    run(work())


def test_a_request_that_names_the_whole_vocabulary_is_checked_quickly() -> None:
    """The check runs on the event loop, once for each answer."""
    size = 100_000
    bias = dict.fromkeys(range(size), 1.0)
    request = TokenRequest([1], sampling=Sampling(logit_bias=bias), stop_token_ids=frozenset(range(size)))
    seconds = []
    for _ in range(3):
        started = time.thread_time()
        check_request(request, replace(MODEL, vocab_size=size))
        seconds.append(time.thread_time() - started)
    assert min(seconds) < 0.04
    wrongs: list[dict[Any, float]] = [{**bias, size: 1.0}, {**bias, 3: float("nan")}, {1: 1.0, 1.5: 1.0}, {True: 1.0}]
    for wrong in wrongs:
        with pytest.raises(RequestError) as raised:
            check_request(replace(request, sampling=Sampling(logit_bias=wrong)), replace(MODEL, vocab_size=size))
        assert raised.value.details["param"] == "logit_bias"
