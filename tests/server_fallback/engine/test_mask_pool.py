"""Constrained answers of the token engine over the hash model."""

from __future__ import annotations

import asyncio
import time
import weakref
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from engine_requests import LIMITS, OTHERS, EvenTokens, collect, engine_on, ids, run, settle
from hash_model import answer_of
from hash_runner import HashRunner

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.engine.config import EngineConfig


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
            # The states of a parser can be large, so they must not wait for the garbage collector. The loop's variables
            # keep the last one.
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
def test_a_constraint_that_fails_ends_only_its_own_answer(what: str) -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            failed, other = await asyncio.gather(
                collect(engine, constraint=Failing(what=what)), ids(engine, OTHERS[0]), return_exceptions=True
            )
            assert isinstance(failed, RequestError)
            assert other == answer_of(OTHERS[0], 6, 64)[0]

    run(work())
