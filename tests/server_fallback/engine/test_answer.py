"""How answers end, over the hash model: stop tokens, min_tokens, max_tokens, and the end of the context."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_requests import LIMITS, OTHERS, PROMPT, EvenTokens, collect, engine_on, ids, run
from hash_model import STOP
from hash_runner import HashRunner

from nearfar.compiler.runtime.errors import RequestError


def test_a_stop_token_ends_the_answer_and_is_not_emitted() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            whole = await ids(engine)
            tokens, completion = await collect(engine, stop_token_ids=frozenset({whole[2]}))
            assert [token.token_id for token in tokens] == whole[: whole.index(whole[2])]
            assert completion.finish_reason == "stop"

    run(work())


def test_a_last_token_ends_the_answer_and_is_emitted() -> None:
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
                # From there on, the answer continues as without min_tokens.
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
            # Before min_tokens, the end token is still excluded, as in vLLM.
            assert STOP not in (await ids(engine, prompt, max_tokens=40, ignore_eos=True, min_tokens=40))

    run(work())


@pytest.mark.parametrize(("complete", "reason"), [(True, "stop"), (False, "length")])
def test_an_answer_that_is_complete_at_max_tokens_is_not_cut(complete: bool, reason: str) -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            tokens, completion = await collect(engine, constraint=EvenTokens(complete=complete), max_tokens=3)
            assert (len(tokens), completion.finish_reason) == (3, reason)

    run(work())


def test_a_full_context_ends_an_answer_or_the_oldest_tokens_make_way() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(replace(LIMITS, pages=4)), context=40) as engine:
            # The pages hold fewer tokens than the model's context.
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
