"""The goodput that a search finds: it ends simulations early, skips rates and layouts, and still finds what complete
simulations of all of them find.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_workers import COSTS, request

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.simulate.layout import Layout
from nearfar.server_fallback.simulate.request import NEVER, SimulatedRequest
from nearfar.server_fallback.simulate.run import run
from nearfar.server_fallback.simulate.scenario import Scenario
from nearfar.server_fallback.simulate.studies import PRECISION, GoodputSearch, exponent_of, splits
from nearfar.server_fallback.simulate.summary import (
    CLOCK_ERROR,
    Bounds,
    Limit,
    Verdict,
    most_misses,
    share_in_time,
)
from nearfar.server_fallback.simulate.workload import Workload

BOUNDS = Bounds(0.15, 0.06)
LOAD = {
    "arrivals": {"kind": "poisson", "rate": 1.0},
    "requests": 24,
    "prompt": {"kind": "uniform", "least": 100, "most": 500},
    "output": {"kind": "uniform", "least": 1, "most": 40},
}
SCENARIO = Scenario.model_validate(
    {
        "study": "split",
        "device": {
            "own": {
                "name": "a test", "source": "this file", "cache_tokens": 20_000, "token_bytes": 1000, "context": 2048,
                "costs": {"knots": [list(knot) for knot in COSTS.knots], "row": COSTS.row, "pair": COSTS.pair},
            }
        },
        "workload": LOAD,
        "cluster": {"gpus": 3, "link": {"gigabytes_per_second": 10.0}, "first_token": "prefill"},
        "bounds": {"first_token_ms": 150.0, "token_ms": 60.0},
    }
)  # fmt: skip


def holds(layout: Layout, exponent: int) -> bool:
    """By a simulation to its end."""
    requests = Workload.model_validate(LOAD).at_rate((1 + PRECISION) ** exponent).make(SCENARIO.seed, Path())
    return share_in_time(run(layout, requests), BOUNDS) >= BOUNDS.share


@pytest.mark.parametrize("near_rate", [0.5, 60.0])
def test_a_search_finds_the_last_rate_at_which_complete_simulations_hold(near_rate: float) -> None:
    layout = SCENARIO.layout(Path(), whole=1)
    search = GoodputSearch(layout, SCENARIO.workload, BOUNDS.limits, SCENARIO.seed)
    found = exponent_of(search.find(near_rate).rate)
    assert holds(layout, found)
    assert not holds(layout, found + 1)
    assert not search.exceeds((1 + PRECISION) ** found)
    assert search.exceeds((1 + PRECISION) ** (found - 1))


def test_bounds_that_never_or_always_hold() -> None:
    layout = SCENARIO.layout(Path(), whole=1)
    assert GoodputSearch(layout, SCENARIO.workload, Bounds(0.001, 1.0).limits, 1).find(1.0).rate == 0.0
    with pytest.raises(RequestError, match="simulate more requests"):
        GoodputSearch(layout, SCENARIO.workload, Bounds(100.0, 100.0).limits, 1).find(1.0)


def test_the_best_split_is_that_of_a_search_of_all_of_them() -> None:
    for split in splits(SCENARIO, Path(), lambda _: None):
        rates = {}
        for prefill in range(1, split.gpus):
            layout = SCENARIO.layout(Path(), prefill=prefill, decode=split.gpus - prefill)
            search = GoodputSearch(layout, SCENARIO.workload, BOUNDS.limits, SCENARIO.seed)
            rates[prefill] = search.find(float(split.gpus)).rate
        if split.apart is None:
            assert not rates
        else:
            assert rates[split.apart.layout.prefill] == split.apart.rate == max(rates.values())


def answered(number: int, first: float) -> SimulatedRequest:
    made = request(number, 0.0, 10, 1)
    made.first = made.finish = first
    return made


@pytest.mark.parametrize(
    ("late", "holds_all", "certain"),
    [({0, 1}, True, 9), ({0, 1, 2}, False, 2), ({7, 8, 9}, False, 9), (set(), True, 7), ({3, 9}, False, 9)],
)
def test_a_verdict_is_that_of_all_requests_as_soon_as_it_is_certain(
    late: set[int], holds_all: bool, certain: int
) -> None:
    """Eight of ten must be in time, and four of them in half the time."""
    limits = [
        Limit(lambda each: each.first_token_seconds <= 1.0, 0.8),
        Limit(lambda each: each.first_token_seconds <= 0.5, 0.4),
    ]
    requests = [answered(number, 2.0 if number in late else 0.4 if number % 2 else 0.9) for number in range(10)]
    verdict = Verdict(limits, len(requests))
    assert next(index for index, each in enumerate(requests) if verdict.answered(each)) == certain
    assert verdict.holds == holds_all
    assert holds_all == all(sum(map(limit.holds, requests)) >= limit.share * len(requests) for limit in limits)


@pytest.mark.parametrize("rate", [2.0, 6.0, 12.0])
@pytest.mark.parametrize("bounds", [Bounds(0.15, 0.06, 0.8), Bounds(0.15, 0.03, 0.8), Bounds(2.0, 0.028, 0.9)])
def test_a_simulation_ends_at_deadlines_with_the_verdict_of_a_complete_one(rate: float, bounds: Bounds) -> None:
    """For workers of which one has the first token, and another one the others."""
    layout = SCENARIO.layout(Path(), prefill=1, decode=1)
    load = Workload.model_validate({**LOAD, "requests": 60}).at_rate(rate)
    early, requests = Verdict(bounds.limits, 60), load.make(1, Path())
    ended = run(layout, requests, judge=early)
    complete = run(layout, load.make(1, Path()))
    assert early.holds == (share_in_time(complete, bounds) >= bounds.share)
    if not early.holds:
        # Those whose answers had not ended by then were counted, too.
        assert sum(request.finish != NEVER for request in ended.requests) < 60
        times = {each.number: (each.first, each.finish) for each in complete.requests}
        assert all(times[each.number][0] == each.first for each in ended.requests if each.first != NEVER)


def test_a_request_that_is_late_is_counted_once() -> None:
    """Two of ten may miss the limit of one second."""
    limits = [Limit(lambda each: each.first_token_seconds <= 1.0, 0.8, lambda _: 1.0)]
    verdict = Verdict(limits, 10)
    waiting = [request(number, 0.0, 10, 1) for number in range(3)]
    assert verdict.deadlines(waiting[0]) == {1.0 + CLOCK_ERROR}
    for each in waiting[:2]:
        assert not verdict.late(each, 1.1)
        assert not verdict.late(each, 1.2)
    assert not verdict.answered(answered(0, 1.5))
    assert not verdict.late(waiting[0], 1.6), "it was answered"
    assert not verdict.late(answered(5, 0.9), 1.1), "it has its first token"
    assert verdict.late(waiting[2], 1.1)
    assert verdict.holds is False


def test_how_many_requests_may_miss_a_limit() -> None:
    assert [most_misses(share, 10) for share in (0.9, 0.95, 1.0, 0.5)] == [1, 0, 0, 5]
    # 0.7 * 10 is less than 7 by a rounding error, and so on.
    for count in (7, 10, 30, 400):
        for share in (0.1, 0.3, 0.7, 0.9, 0.99):
            misses = most_misses(share, count)
            assert (count - misses) / count >= share > (count - misses - 1) / count
