"""What an engine counts of its steps and answers, and the prefix cache that is emptied on request."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from engine_requests import LIMITS, OTHERS, PROMPT, collect, engine_on, ids, run, settle
from hash_model import answer_of
from hash_runner import HashRunner

from nearfar.server_fallback.engine.request import TokenRequest
from nearfar.server_fallback.engine.stats import Histogram


def counted(histogram: Histogram) -> tuple[int, float]:
    return histogram.count, histogram.total


def test_steps_and_answers_are_counted_also_those_that_are_left() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            _, first = await collect(engine)
            left = engine.generate(TokenRequest(OTHERS[0], 50, ignore_eos=True))
            for _ in range(3):
                await anext(left)
            await left.aclose()
            await settle(engine)
            stats = engine.stats()
            found = stats.requests
            assert found is not None
            # A stop string ends an answer from outside, so one that is left counts, with its tokens.
            assert counted(found.prompt_tokens) == (2, len(PROMPT) + len(OTHERS[0]))
            answers, tokens = counted(found.generation_tokens)
            assert (answers, tokens >= 6 + 3) == (2, True)
            assert counted(found.step_tokens) == (stats.steps, stats.computed_tokens)
            prefill, decode = counted(found.prefill_seconds), counted(found.decode_seconds)
            assert (prefill[0], decode[0]) == (2, 2)
            assert prefill[1] > 0
            assert decode[1] >= first.total_seconds - first.time_to_first_token_seconds - 0.01
            assert (stats.page_size, stats.num_pages, stats.max_adapters) == (engine.model.page_size, LIMITS.pages, 0)

    run(work())


def test_an_answer_that_never_began_is_not_counted() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            task = asyncio.ensure_future(collect(engine))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await settle(engine)
            found = engine.stats().requests
            assert found is not None
            assert found.prompt_tokens.count == found.decode_seconds.count

    run(work())


def test_nothing_that_was_computed_before_is_found_after_a_reset() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            # A page is found again, until the reset.
            for cached in (0, 8, 0):
                if cached == 0:
                    await engine.reset_prefix_cache()
                _, end = await collect(engine, max_tokens=1)
                assert end.cached_tokens == cached

    run(work())


def test_a_reset_leaves_running_answers_their_pages() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(replace(LIMITS, pages=12))) as engine:
            running = engine.generate(TokenRequest(PROMPT, 20, ignore_eos=True))
            first = await anext(running)
            await engine.reset_prefix_cache()
            # Other answers take the pages that are free, and then those of the first.
            for prompt in OTHERS:
                assert await ids(engine, prompt) == answer_of(prompt, 6, 64)[0]
            rest = [item async for item in running]
            found = [item.token_id for item in (first, *rest) if hasattr(item, "token_id")]
            assert found == answer_of(PROMPT, 20, 64)[0]
            for prompt in (PROMPT, *OTHERS):
                assert await ids(engine, prompt) == answer_of(prompt, 6, 64)[0]

    run(work())
