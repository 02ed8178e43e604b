"""Constrained answers with slow masks over the hash model: no other answer waits for them, and their time is
limited.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
import weakref
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
from engine_requests import LIMITS, OTHERS, PROMPT, EvenTokens, engine_on, ids, require_no_page_held, run, settle
from hash_model import answer_of
from hash_runner import MODEL, HashRunner
from waiting import WAIT_SECONDS

from nearfar.compiler.runtime.errors import DeadlineExceeded, RequestError, Unavailable
from nearfar.server_fallback.engine import engine_loop, mask_pool, mask_task
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.masks import SavedWaits
from nearfar.server_fallback.engine.token_engine import TokenEngine

IMPATIENT = EngineConfig(max_mask_wait_seconds=0.001)
ROOMY = replace(LIMITS, pages=400)


@dataclass(eq=False, slots=True, weakref_slot=True)
class Blocking(EvenTokens):
    """Its mask number ``blocked_mask`` waits until it is released."""

    blocked_mask: int = 2
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    masks: int = 0

    def mask(self) -> npt.NDArray[np.int32] | None:
        self.masks += 1
        if self.masks == self.blocked_mask:
            self.reached.set()
            assert self.released.wait(WAIT_SECONDS)
        return EvenTokens.mask(self)


@dataclass(eq=False, slots=True)
class Busy(EvenTokens):
    """Its masks use ``seconds`` of processor time."""

    seconds: float = 0.0

    def mask(self) -> npt.NDArray[np.int32] | None:
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            sum(range(100))
        return EvenTokens.mask(self)

    @property
    def finished(self) -> bool:
        return False


@dataclass(eq=False, slots=True)
class BusyUntilReleased(EvenTokens):
    """Its first mask uses the processor until it is released."""

    released: threading.Event = field(default_factory=threading.Event)

    def mask(self) -> npt.NDArray[np.int32] | None:
        while not self.released.is_set():
            sum(range(100))
        return EvenTokens.mask(self)


async def reached(constraint: Blocking) -> None:
    assert await asyncio.to_thread(constraint.reached.wait, WAIT_SECONDS)


@pytest.mark.parametrize("blocked_mask", [1, 2])
def test_other_answers_go_on_while_a_mask_is_computed(blocked_mask: int) -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS, threaded=True), IMPATIENT) as engine:
            alone = await ids(engine, constraint=EvenTokens(), max_tokens=20)
            constraint = Blocking(blocked_mask=blocked_mask)
            slow = asyncio.ensure_future(ids(engine, constraint=constraint, max_tokens=20))
            await reached(constraint)
            # This includes the same prompt: no answer waits for the pages of the slow one.
            for prompt in (OTHERS[0], OTHERS[1], PROMPT):
                assert await ids(engine, prompt, max_tokens=12) == answer_of(prompt, 12, 64)[0]
            assert not slow.done()
            constraint.released.set()
            assert await slow == alone

    run(work())


def test_other_constrained_answers_go_on_while_masks_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    # A blocked thread uses no processor time, so the pool does not notice it.
    monkeypatch.delattr(time, "pthread_getcpuclockid", raising=False)

    async def work() -> None:
        async with engine_on(
            HashRunner(replace(LIMITS, sequences=8, rows=8), threaded=True, step_seconds=0.001), IMPATIENT
        ) as engine:
            alone = await ids(engine, constraint=EvenTokens(), max_tokens=20)
            constraints = [Blocking() for _ in range(4)]
            slow = [
                asyncio.ensure_future(ids(engine, constraint=constraint, max_tokens=20)) for constraint in constraints
            ]
            for constraint in constraints:
                await reached(constraint)
            assert await ids(engine, constraint=EvenTokens(), max_tokens=20) == alone
            for constraint in constraints:
                constraint.released.set()
            assert await asyncio.gather(*slow) == [alone] * 4
            assert len(engine._loop._masks._threads) <= mask_pool.NUM_QUICK + mask_pool.NUM_SLOW  # type: ignore[attr-defined]

    run(work())


def test_an_answer_over_its_mask_budget_ends_with_an_error_and_no_other_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_task, "BUDGET_SECONDS", 0.05)
    monkeypatch.setattr(mask_task, "BUDGET_SECONDS_PER_TOKEN", 0.001)

    async def work() -> None:
        async with engine_on(HashRunner(ROOMY, threaded=True), context=400) as engine:
            other = asyncio.ensure_future(ids(engine, OTHERS[0], max_tokens=100))
            # The budget is for the complete answer: no single mask exceeds it.
            with pytest.raises(RequestError, match=r"the grammar is too slow: after \d tokens") as raised:
                await ids(engine, constraint=Busy(seconds=0.02), max_tokens=200)
            assert raised.value.details["code"] == "grammar_too_slow"
            assert raised.value.details["tokens"] in (2, 3, 4)
            # The budget grows with the answer.
            assert len(await ids(engine, constraint=Busy(seconds=0.0005), max_tokens=150)) == 150
            assert await other == answer_of(OTHERS[0], 100, 400)[0]
            await settle(engine)
            require_no_page_held(engine)

    run(work())


@pytest.mark.skipif(
    not hasattr(time, "pthread_getcpuclockid"), reason="this system does not tell another thread's processor time"
)
def test_the_budget_ends_an_answer_while_its_mask_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_task, "BUDGET_SECONDS", 0.05)

    async def work() -> None:
        async with engine_on(HashRunner(LIMITS, threaded=True)) as engine:
            constraint = BusyUntilReleased()
            with pytest.raises(RequestError, match="the grammar is too slow"):
                await ids(engine, constraint=constraint)
            constraint.released.set()
            assert await ids(engine, constraint=EvenTokens()) == await ids(engine, constraint=EvenTokens())

    run(work())


@pytest.mark.parametrize("how", ["cancelled", "deadline"])
def test_an_answer_that_ends_while_its_mask_is_computed_leaves_nothing(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = 0.0
    clock = SimpleNamespace(perf_counter=time.perf_counter, monotonic=lambda: time.monotonic() + passed)
    monkeypatch.setattr(engine_loop, "time", clock)

    async def work() -> None:
        nonlocal passed
        async with engine_on(HashRunner(LIMITS, threaded=True), IMPATIENT) as engine:
            constraint = Blocking(blocked_mask=1 if how == "deadline" else 2)
            deadline = time.monotonic() + 1000 if how == "deadline" else None
            task = asyncio.ensure_future(ids(engine, constraint=constraint, max_tokens=20, deadline=deadline))
            await reached(constraint)
            if how == "cancelled":
                task.cancel()
            else:
                passed = 2000.0
            with pytest.raises((asyncio.CancelledError, DeadlineExceeded)):
                await task
            await settle(engine)
            require_no_page_held(engine)
            assert engine._loop._masks.pending == set()
            released, ended = constraint.released, weakref.ref(constraint)
            del constraint, task
            released.set()
            while ended() is not None:
                # An idle engine refers to the last request.
                await ids(engine, OTHERS[0], max_tokens=1)
                gc.collect()

    run(work())


def test_the_engine_closes_while_a_mask_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_pool, "CLOSE_SECONDS", 0.05)

    async def work() -> None:
        runner = HashRunner(LIMITS, threaded=True)
        engine = TokenEngine(runner, MODEL, IMPATIENT)
        constraints = [Blocking(blocked_mask=1), Blocking(blocked_mask=2)]
        answers = [asyncio.ensure_future(ids(engine, constraint=constraint)) for constraint in constraints]
        await reached(constraints[0])
        await engine.close()
        assert runner.closed
        for answer in answers:
            with pytest.raises(Unavailable):
                await answer
        for constraint in constraints:
            constraint.released.set()
        while engine._loop._masks._threads:  # type: ignore[attr-defined]
            await asyncio.sleep(0.001)

    run(work())


def test_a_preempted_answer_whose_mask_is_late_gives_the_same_tokens() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(replace(LIMITS, sequences=1, rows=1), threaded=True), IMPATIENT) as engine:
            alone = await ids(engine, constraint=EvenTokens(), max_tokens=20)
            constraint = Blocking()
            slow = asyncio.ensure_future(ids(engine, constraint=constraint, max_tokens=20))
            await reached(constraint)
            # A request of higher priority gets the only slot.
            assert await ids(engine, OTHERS[0], priority=1) == answer_of(OTHERS[0], 6, 64)[0]
            assert engine.stats().preemptions == 1
            constraint.released.set()
            assert await slow == alone

    run(work())


def test_the_engine_waits_for_masks_half_of_the_time_at_most() -> None:
    waits, now, waited, worked = SavedWaits(0.01), 0.0, 0.0, 0.0
    for step in range(40):
        until = waits.begin(now)
        assert now <= until <= now + 0.01
        waited += until - now
        now = until
        waits.end(now)
        if step == SavedWaits.NUM_SAVED - 1:
            assert waited == pytest.approx(SavedWaits.NUM_SAVED * 0.01)
        now, worked = now + 0.002, worked + 0.002
    assert waited == pytest.approx(SavedWaits.NUM_SAVED * 0.01 + worked - 0.002)
    pool = mask_pool.MaskPool[None](0.01)
    constraint = Blocking(blocked_mask=1)
    pool.post([mask_task.MaskTask(None, constraint)])
    # The wait ends although the mask is never done.
    assert pool.collect() == ([], [])
    constraint.released.set()
    while not pool.collect(1)[0]:
        pass
    pool.close()


def test_a_slow_first_mask_does_not_make_an_answer_a_slow_one() -> None:
    pool = mask_pool.MaskPool[None](5)
    task = mask_task.MaskTask(None, Busy(seconds=2 * mask_pool.QUICK_SECONDS))
    for is_quick in (True, False):
        pool.post([task])
        while task in pool.pending:
            pool.collect(1)
        assert (task.last_seconds <= mask_pool.QUICK_SECONDS) == is_quick
        task.advance(2, is_last=False)
    pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority for each thread")
def test_a_thread_with_a_slow_mask_yields_the_processor() -> None:
    pool = mask_pool.MaskPool[None](0.001)
    constraint = Blocking(blocked_mask=1)
    pool.post([mask_task.MaskTask(None, constraint)])
    assert constraint.reached.wait(WAIT_SECONDS)
    [thread] = pool._threads
    assert thread._native_id is not None
    assert os.getpriority(os.PRIO_PROCESS, thread._native_id) == os.getpriority(os.PRIO_PROCESS, 0)
    thread.become_slow()
    assert os.getpriority(os.PRIO_PROCESS, thread._native_id) > os.getpriority(os.PRIO_PROCESS, 0)
    constraint.released.set()
    pool.close()


def test_slow_tasks_run_by_least_used_time_and_quick_ones_do_not_wait_for_them() -> None:
    pool = mask_pool.MaskPool[None](5)
    blocked = [Blocking(blocked_mask=1) for _ in range(mask_pool.NUM_SLOW)]
    order: list[str] = []

    class Named(EvenTokens):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def mask(self) -> npt.NDArray[np.int32] | None:
            order.append(self.name)
            return None

    def task(constraint: EvenTokens, seconds: float) -> mask_task.MaskTask[None]:
        found = mask_task.MaskTask(None, constraint)
        found.seconds = found.last_seconds = seconds
        return found

    pool.post([task(constraint, 1.0) for constraint in blocked])
    assert all(constraint.reached.wait(WAIT_SECONDS) for constraint in blocked)
    pool.post([task(Named("c"), 3.0), task(Named("a"), 1.0), task(Named("b"), 2.0), task(Named("quick"), 0.0)])
    assert [done.last_seconds < 1 for done in pool.collect()[0]] == [True]
    assert order == ["quick"]
    # One slow thread continues.
    blocked[0].released.set()
    while len(order) < 4:
        pool.collect(0.1)
    assert order == ["quick", "a", "b", "c"]
    for constraint in blocked:
        constraint.released.set()
    pool.close()
