"""Drafts from clients: an answer is the same as without them, whatever they are; and the costs of a round, and the
state after it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from engine_requests import LIMITS as NO_SPARE_ROWS
from engine_requests import Gate, engine_on, require_no_page_held, run, settle
from hash_model import VOCAB
from hash_runner import MODEL, HashRunner
from test_same_under_load import alone, answer, left_early, mixed_requests
from tiny_models import VOCAB_SIZE
from waiting import until

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.ir.sampling import Sampling
from nearfar.compiler.runtime.errors import DeadlineExceeded, RequestError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.request import FinishReason, TokenRequest
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.engine.verification import Verification

LIMITS = Limits(tokens=24, sequences=4, rows=20, pages=24)
# The hash model gives this prompt a long answer.
PROMPT = [13, 2, 3, 13, 10, 1, 5, 13, 1, 14]
LONG = TokenRequest(PROMPT, 21, Sampling(temperature=1, seed=3))
LONG_MODEL = TokenModel(VOCAB, frozenset(), 64, 4)

# Returns drafts for a number of generated tokens and the complete answer.
Guess = Callable[[int, Sequence[int]], list[int]]


def right(known: int, tokens: Sequence[int]) -> list[int]:
    return list(tokens[known : known + 4])


def nothing(known: int, tokens: Sequence[int]) -> list[int]:  # noqa: ARG001
    return []


def half_right(known: int, tokens: Sequence[int]) -> list[int]:
    found = right(known, tokens)
    return [token if index < known % 4 else (token + 1) % VOCAB for index, token in enumerate(found)]


def noise(known: int, tokens: Sequence[int]) -> list[int]:
    chosen = random.Random(31 * known + len(tokens))
    return [chosen.randrange(VOCAB) for _ in range(chosen.randrange(7))]


async def verified(
    engine: TokenEngine, request: TokenRequest, tokens: Sequence[int], guess: Guess
) -> tuple[list[int], FinishReason, int]:
    """The answer, its finish reason, and its number of rounds."""
    stream, found, rounds = Verification(engine, request), list[int](), 0
    while True:
        given = await stream.check(guess(len(found), tokens))
        found += given.token_ids
        rounds += 1
        if given.finish_reason is not None:
            return found, given.finish_reason, rounds
        assert given.token_ids, "a round gives a token at least"


@pytest.mark.parametrize("threaded", [False, True])
def test_drafts_of_many_clients_beside_other_requests_change_no_answer(threaded: bool) -> None:
    requests = [each for each in mixed_requests(60, VOCAB, (1, 3, 4, 9, 17, 30), 16) if can_verify(each)]
    expected = alone(HashRunner(LIMITS), MODEL, requests)
    others = mixed_requests(20, VOCAB, (2, 12), 16)
    expected_others = alone(HashRunner(LIMITS), MODEL, others)
    guesses = (right, nothing, half_right, noise)

    async def work() -> None:
        async with engine_on(HashRunner(LIMITS, threaded=threaded)) as engine:
            leaving = [left_early(engine, request, index % 4) for index, request in enumerate(others)]
            streams = [
                verified(engine, request, tokens, guesses[index % 4])
                for index, (request, (tokens, _)) in enumerate(zip(requests, expected, strict=True))
            ]
            found, _, whole = await asyncio.gather(
                asyncio.gather(*streams),
                asyncio.gather(*leaving),
                asyncio.gather(*(answer(engine, request) for request in others)),
            )
            assert [each[:2] for each in found] == expected
            assert whole == expected_others
            assert engine.stats().accepted_tokens > 50
            await settle(engine)
            require_no_page_held(engine)

    run(work())


def can_verify(request: TokenRequest) -> bool:
    own = request.sampling
    penalties = own.repetition_penalty != 1 or own.frequency_penalty != 0 or own.presence_penalty != 0
    masked = request.constraint is not None or request.min_tokens > 0
    return not penalties and not own.logit_bias and request.when_full == "stop" and not masked


def test_right_drafts_take_a_round_for_five_tokens_and_no_position_is_computed_twice() -> None:
    ((tokens, _),) = alone(HashRunner(LIMITS), LONG_MODEL, [LONG])

    async def work() -> None:
        runner = HashRunner(LIMITS)
        engine = TokenEngine(runner, LONG_MODEL)
        assert await verified(engine, LONG, tokens, right) == (tokens, "length", 5)
        # The prompt with the first drafts; then the last token and its drafts. The last round generates one token.
        assert [len(batch.token_ids) for batch in runner.batches] == [10 + 4, 5, 5, 5, 1]
        assert runner.copies == 0
        await engine.close()

    run(work())


def test_a_wrong_draft_costs_its_round_and_accepted_tokens_are_not_computed_again() -> None:
    ((tokens, _),) = alone(HashRunner(LIMITS), LONG_MODEL, [LONG])

    async def work() -> None:
        runner = HashRunner(LIMITS)
        engine = TokenEngine(runner, LONG_MODEL)
        stream = Verification(engine, LONG)
        assert (await stream.check([tokens[0], tokens[1], (tokens[2] + 1) % VOCAB, tokens[3]])).token_ids == tokens[:3]
        given = await stream.check(tokens[3:5])
        assert given.token_ids == tokens[3:6]
        assert given.cached_tokens == len(PROMPT) + 2
        await engine.close()

    run(work())


def test_between_rounds_a_stream_holds_nothing_and_goes_on_when_its_pages_are_gone() -> None:
    ((tokens, _),) = alone(HashRunner(LIMITS), LONG_MODEL, [LONG])
    others = [TokenRequest([index, *PROMPT], 40) for index in range(12)]

    async def work() -> None:
        engine = TokenEngine(HashRunner(LIMITS), LONG_MODEL)
        stream = Verification(engine, LONG)
        found = (await stream.check(tokens[:2])).token_ids
        assert engine.stats().running == engine.stats().waiting == 0
        require_no_page_held(engine)
        # These requests fill the pages several times.
        await asyncio.gather(*(answer(engine, request) for request in others))
        given = await stream.check(tokens[3:5])
        assert given.cached_tokens == 0
        assert found + given.token_ids == tokens[:6]
        # A cache without a free page makes room for drafts.
        assert engine._loop.scheduler.kv.kinds[0].free < 3
        await engine.close()

    run(work())


def test_a_round_that_is_left_early_is_as_if_it_had_not_been() -> None:
    ((tokens, _),) = alone(HashRunner(LIMITS), LONG_MODEL, [LONG])

    async def work() -> None:
        engine = TokenEngine(HashRunner(LIMITS, threaded=True, hold=(gate := Gate())), LONG_MODEL)
        stream = Verification(engine, LONG)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.check(tokens[:4]), 0.005)
        gate.open()
        assert stream.answered == 0
        assert (await stream.check(tokens[:4])).token_ids == tokens[:5]
        await settle(engine)
        require_no_page_held(engine)
        await engine.close()

    run(work())


def test_a_deadline_ends_the_round_it_falls_in() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS, threaded=True, step_seconds=0.02)) as engine:
            stream = Verification(engine, TokenRequest(PROMPT, 6, deadline=time.monotonic()))
            with pytest.raises(DeadlineExceeded):
                await stream.check([1, 2])
            await settle(engine)
            require_no_page_held(engine)

    run(work())


def test_a_later_round_goes_before_requests_that_came_after_its_first() -> None:
    async def work() -> None:
        gate = Gate()
        runner = HashRunner(Limits(tokens=24, sequences=1, rows=5, pages=24), threaded=True, hold=gate)
        engine = TokenEngine(runner, LONG_MODEL)
        stream = Verification(engine, LONG)
        ended: list[str] = []

        async def named(name: str, request: TokenRequest) -> None:
            await answer(engine, request)
            ended.append(name)

        async def round_of(stream: Verification) -> None:
            await stream.check([])
            ended.append("round")

        gate.open()
        await stream.check([])
        gate.close()
        others = [asyncio.create_task(named(f"other {index}", TokenRequest([index, 1, 2], 8))) for index in range(3)]
        await until(lambda: (engine.stats().running, engine.stats().waiting) == (1, 2))
        later = asyncio.create_task(round_of(stream))
        await until(lambda: engine.stats().waiting == 3)
        gate.open()
        await asyncio.gather(later, *others)
        assert ended.index("round") <= 1
        await engine.close()

    run(work())


def test_without_spare_rows_a_round_gives_one_token() -> None:
    ((tokens, _),) = alone(HashRunner(NO_SPARE_ROWS), MODEL, [TokenRequest(PROMPT, 6)])

    async def work() -> None:
        async with engine_on(HashRunner(NO_SPARE_ROWS)) as engine:
            assert engine.max_drafts == 0
            assert (await Verification(engine, TokenRequest(PROMPT, 6)).check(tokens[:3])).token_ids == tokens[:1]

    run(work())


def test_drafts_that_cannot_be_verified_are_refused() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            for wrong in (
                TokenRequest(PROMPT, 6, Sampling(repetition_penalty=2.0)),
                TokenRequest(PROMPT, 6, when_full=4),
            ):
                with pytest.raises(RequestError, match="drafts cannot be checked"):
                    await Verification(engine, wrong).check([1])
            with pytest.raises(RequestError, match="token 1 of drafts is 16"):
                await Verification(engine, TokenRequest(PROMPT, 6)).check([1, VOCAB])

    run(work())


def test_a_models_answers_are_those_of_plain_decoding(tiny_bundle: Path) -> None:
    bundle = open_bundle(tiny_bundle)
    model = TokenModel.of(bundle.manifest)

    def runner() -> ReferenceRunner:
        return ReferenceRunner(bundle, limits=Limits(tokens=64, sequences=4, rows=16, pages=24), activation="float32")

    requests = [each for each in mixed_requests(8, VOCAB_SIZE, (5, 16), 10) if can_verify(each)]
    expected = alone(runner(), model, requests)

    async def work() -> None:
        engine = TokenEngine(runner(), model)
        found = await asyncio.gather(
            *(verified(engine, each, tokens, half_right) for each, (tokens, _) in zip(requests, expected, strict=True))
        )
        assert [each[:2] for each in found] == expected
        assert engine.stats().accepted_tokens > 0
        await engine.close()

    run(work())
