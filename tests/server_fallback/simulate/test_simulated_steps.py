"""The steps of a simulated worker are those of the engine."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from hash_runner import MODEL, PAGE, HashRunner
from simulated_workers import device, request, serve
from waiting import wait_until

from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.request import TokenRequest
from nearfar.server_fallback.engine.scheduler import Scheduler
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.simulate.costs import Shape, StepCosts, shape_of
from nearfar.server_fallback.simulate.leaps import LeapingScheduler
from nearfar.server_fallback.simulate.measure import shape_of_batch
from nearfar.server_fallback.simulate.worker import Worker


def test_the_scheduler_is_the_engines_own() -> None:
    """A leap is added, and nothing that decides is replaced."""
    assert issubclass(LeapingScheduler, Scheduler)
    own = {name for name, value in vars(LeapingScheduler).items() if callable(value)}
    assert own & set(vars(Scheduler)) == set()


@pytest.mark.parametrize(
    ("lookahead", "cache_tokens", "between"), [(1, 4000, 0.12), (2, 20_000, 0.3), (2, 2500, 0.01), (3, 2500, 0.01)]
)
def test_leaps_change_no_result(lookahead: int, cache_tokens: int, between: float) -> None:
    outcomes = []
    for leaps in (True, False):
        chance = np.random.default_rng(lookahead)
        arrivals = np.cumsum(chance.exponential(between, 40))
        requests = [
            request(number, float(at), int(chance.integers(1, 700)), int(chance.integers(1, 260)))
            for number, at in enumerate(arrivals)
        ]
        worker, _, _ = serve(device(cache_tokens=cache_tokens, lookahead=lookahead), requests, leaps=leaps)
        outcomes.append(
            (
                [(each.started, each.first, each.finish, each.cached_tokens) for each in requests],
                worker.steps,
                worker.computed_tokens,
                worker.most_pages,
                worker.scheduler.preemptions,
            )
        )
    assert outcomes[0] == outcomes[1]


def test_a_simulated_worker_takes_the_steps_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same requests, of which all but the first arrive while the first step runs: the shapes of all steps agree."""
    lengths = [(9, 6), (30, 3), (2, 12), (17, 1), (40, 8), (5, 9), (12, 12), (33, 2)]
    limits = Limits(tokens=24, sequences=4, rows=4, pages=26)
    begun, go_on = threading.Event(), threading.Event()

    def hold(step: int) -> None:
        begun.set()
        if step == 0:
            assert go_on.wait(30)

    runner = HashRunner(limits, threaded=True, hold=hold)

    async def answer() -> None:
        engine = TokenEngine(runner, MODEL)

        async def ask(number: int, prompt: int, output: int) -> None:
            ids = [1 + (number * 7 + index) % (MODEL.vocab_size - 1) for index in range(prompt)]
            async for _ in engine.batches(TokenRequest(ids, max_tokens=output, ignore_eos=True)):
                pass

        first = asyncio.create_task(ask(0, *lengths[0]))
        await asyncio.to_thread(begun.wait, 30)
        rest = [asyncio.create_task(ask(number, *each)) for number, each in enumerate(lengths[1:], 1)]
        await asyncio.to_thread(wait_until, lambda: engine.stats().waiting == len(rest))
        go_on.set()
        await asyncio.gather(first, *rest)
        await engine.close()

    asyncio.run(answer())
    real = [shape_of_batch(batch) for batch in runner.batches]

    steps: list[Shape] = []
    submit = Worker._submit

    def submitted(self: Worker, step: object, now: float) -> None:
        steps.append(shape_of(step.rows))  # type: ignore[attr-defined]
        submit(self, step, now)  # type: ignore[arg-type]

    monkeypatch.setattr(Worker, "_submit", submitted)
    on = device(
        StepCosts(((1.0, 0.1),)), cache_tokens=26 * PAGE, context=MODEL.context, step_tokens=24, sequences=4,
        page_size=PAGE,
    )  # fmt: skip
    requests = [request(number, 0.05 * (number > 0), *each) for number, each in enumerate(lengths)]
    serve(on, requests, leaps=False)
    assert steps == real
