"""Workers that change roles: who computes what, and when they return to their own role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from simulated_workers import COSTS, device, request

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.simulate.costs import Shape
from nearfar.server_fallback.simulate.layout import Layout, Store
from nearfar.server_fallback.simulate.mixed_pool import Member, MixedPool, Pair, Pools
from nearfar.server_fallback.simulate.network import LinkSpeed
from nearfar.server_fallback.simulate.request import SimulatedRequest
from nearfar.server_fallback.simulate.run import run
from nearfar.server_fallback.simulate.workload import Workload

LINK = LinkSpeed(bytes_per_second=1e6, latency_seconds=0.002)


def pools(prefill: int, decode: int, *, queued_tokens: int = 1000, capacity: int = 2000) -> Pools:
    roles = ["prefill"] * prefill + ["decode"] * decode
    return Pools(
        MixedPool(queued_tokens),
        [Member(number, role, capacity) for number, role in enumerate(roles)],  # type: ignore[arg-type]
    )


def numbers(pair: Pair) -> tuple[int, int]:
    return pair.prefill.number, pair.decode.number


def mixed(of: Pools) -> list[int]:
    return [member.number for member in of.members if member.is_mixed]


def test_requests_join_the_shortest_queues() -> None:
    """Of waiting tokens for prompts, and of promised memory for answers."""
    of = pools(2, 2)
    sent = [request(number, 0.0, prompt, 10) for number, prompt in enumerate((600, 100, 200, 300))]
    assert [numbers(of.assign(each)) for each in sent] == [(0, 2), (1, 3), (1, 3), (1, 3)]
    assert mixed(of) == []


def test_prompts_spill_over_to_a_decode_worker_until_it_has_computed_them() -> None:
    of = pools(1, 2)
    first, second, third = (request(number, 0.0, 600, 10) for number in range(3))
    assert numbers(of.assign(first)) == (0, 1)
    spilt = of.assign(second)
    assert numbers(spilt) == (2, 2), "the decode worker without work"
    assert mixed(of) == [2]
    assert numbers(of.assign(third)) == (1, 1), "the mixed worker has a prompt already"
    assert mixed(of) == [1, 2]
    of.prefilled(spilt, second)
    assert mixed(of) == [1]
    assert of.changes == 2


def test_answers_spill_over_to_a_prefill_worker_until_they_end() -> None:
    of = pools(2, 1, capacity=1000)
    first, second, third = (request(number, 0.0, 500, 100) for number in range(3))
    pair = of.assign(first)
    of.prefilled(pair, first)
    spilt = of.assign(second)
    assert pair.decode.number == 2
    assert spilt.decode.number in (0, 1)
    assert mixed(of) == [spilt.decode.number]
    of.prefilled(spilt, second)
    assert mixed(of) == [spilt.decode.number], "its answer goes on"
    of.answered(pair, first)
    assert of.assign(third).decode.number == 2, "its own kind of worker has room again"
    of.answered(spilt, second)
    assert mixed(of) == []


def test_if_all_are_full_one_worker_computes_the_whole_request() -> None:
    of = pools(1, 1, queued_tokens=100, capacity=1000)
    pairs = [of.assign(request(number, 0.0, 600, 100)) for number in range(4)]
    assert [numbers(pair) for pair in pairs[:2]] == [(0, 1), (1, 0)]
    assert all(pair.prefill is pair.decode for pair in pairs[2:])
    assert mixed(of) == [0, 1]


def test_a_request_alone_takes_the_same_time_with_fixed_and_with_changing_roles() -> None:
    times = []
    for pool in (None, MixedPool()):
        alone = request(0, 0.5, 100, 5)
        run(Layout(device(), prefill=1, decode=1, link=LINK, first_token="prefill", mixed_pool=pool), [alone])
        assert alone.workers == [0, 1]
        times.append((alone.first, alone.finish))
    assert times[0] == times[1]


def test_a_second_prompt_does_not_wait_for_the_first_one() -> None:
    """With fixed roles it does. With changing ones the idle decode worker computes it, and its answer."""

    def first_tokens(pool: MixedPool | None) -> list[SimulatedRequest]:
        requests = [request(0, 0.0, 1500, 20), request(1, 0.01, 1500, 20)]
        on = device(lookahead=1)
        layout = Layout(on, prefill=1, decode=1, link=LINK, first_token="prefill", mixed_pool=pool)
        return list(run(layout, requests).requests)

    alone = COSTS.seconds(Shape(1500, 1, 0, 1500 * 1501 // 2))
    fixed, changing = first_tokens(None), first_tokens(MixedPool(queued_tokens=2000))
    assert [each.first_token_seconds for each in changing] == pytest.approx([alone, alone])
    assert changing[1].workers == [1], "one worker has the prompt and the answer, so nothing moves"
    assert fixed[1].first_token_seconds > 1.5 * alone


def workload(**changed: Any) -> Workload:
    return Workload.model_validate(
        {
            "arrivals": {"kind": "gamma", "rate": 12.0, "cv": 3.0},
            "requests": 80,
            "prompt": {"kind": "uniform", "least": 1, "most": 900},
            "output": {"kind": "uniform", "least": 1, "most": 60},
            **changed,
        }
    )


def test_a_burst_is_answered_and_all_workers_return_to_their_roles() -> None:
    layout = Layout(
        device(cache_tokens=4000), prefill=2, decode=2, link=LinkSpeed(1e9), first_token="prefill",
        mixed_pool=MixedPool(queued_tokens=500),
    )  # fmt: skip
    ran = run(layout, workload().make(1, Path()))
    assert all(each.arrival < each.first <= each.finish for each in ran.requests)
    assert ran.cluster.pools is not None
    assert ran.cluster.pools.changes > 4
    for member in ran.cluster.pools.members:
        assert (member.prompts, member.answers, member.queued, member.reserved) == (0, 0, 0, 0)
        assert not member.is_mixed
    kinds = {len(each.workers) for each in ran.requests if each.output_tokens > 1}
    assert kinds == {1, 2}, "some requests stayed on one worker, others moved"
    again = run(layout, workload().make(1, Path()), leaps=False)
    assert [each.finish for each in again.requests] == [each.finish for each in ran.requests]


@pytest.mark.parametrize(
    "changed",
    [{"whole": 2, "prefill": 0, "decode": 0}, {"first_token": "decode"}, {"store": Store(4000, LINK, shared=True)}],
)
def test_a_mixed_pool_that_cannot_be_is_refused(changed: dict[str, Any]) -> None:
    given = {"prefill": 1, "decode": 1, "link": LINK, "first_token": "prefill", "mixed_pool": MixedPool(), **changed}
    with pytest.raises(RequestError, match="mixed_pool is for prefill and decode workers"):
        Layout(device(), **given)
