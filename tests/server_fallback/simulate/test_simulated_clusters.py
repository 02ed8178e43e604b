"""Clusters of simulated workers: what moves between them, and who answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from simulated_workers import COSTS, device, request

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.router.decision.policy import Policy
from nearfar.server_fallback.simulate.costs import Shape, StepCosts
from nearfar.server_fallback.simulate.layout import Layout, Store
from nearfar.server_fallback.simulate.near import Fleet
from nearfar.server_fallback.simulate.network import LinkSpeed
from nearfar.server_fallback.simulate.request import Segment, SimulatedRequest
from nearfar.server_fallback.simulate.run import Ran, run
from nearfar.server_fallback.simulate.summary import Bounds, summarize
from nearfar.server_fallback.simulate.workload import Workload

LINK = LinkSpeed(bytes_per_second=1e6, latency_seconds=0.002)
# Of a token, on `device`.
TOKEN_BYTES = 1000


def workload(**changed: Any) -> Workload:
    return Workload.model_validate(
        {
            "arrivals": {"kind": "poisson", "rate": 4.0},
            "requests": 50,
            "prompt": {"kind": "uniform", "least": 1, "most": 900},
            "output": {"kind": "uniform", "least": 1, "most": 60},
            **changed,
        }
    )


def simulated(layout: Layout, load: Workload, seed: int = 1, **others: Any) -> Ran:
    return run(layout, load.make(seed, Path()), **others)


def times(ran: Ran) -> list[tuple[float, float]]:
    return [(each.first, each.finish) for each in ran.requests]


def test_a_seed_gives_the_same_results_and_another_one_others() -> None:
    layout = Layout(device(), prefill=1, decode=2, link=LinkSpeed(1e9))
    assert times(simulated(layout, workload())) == times(simulated(layout, workload()))
    assert times(simulated(layout, workload())) != times(simulated(layout, workload(), seed=2))


def test_a_prompt_alone_goes_through_the_prefill_worker_the_link_and_the_decode_worker() -> None:
    """Its 1,008 tokens in full pages in two steps; the pages of each follow at once; 2 tokens more and the first one
    on the decode worker.
    """
    prompt = 1010
    alone = request(0, 0.0, prompt, 3)
    run(Layout(device(step_tokens=512), prefill=1, decode=1, link=LINK), [alone])
    first = COSTS.linear(512) + COSTS.pair * 512 * 513 / 2
    second = COSTS.linear(496) + COSTS.pair * (496 * 512 + 496 * 497 / 2)
    # The second block waits for the first one: a megabyte a second is slower than the device.
    arrived = max(first + 512 * TOKEN_BYTES / 1e6, first + second) + 496 * TOKEN_BYTES / 1e6 + 0.002
    assert alone.workers == [0, 1]
    assert alone.first == pytest.approx(arrived + COSTS.seconds(Shape(2, 1, 0, 2 * 1008 + 3)))
    assert alone.cached_tokens == 0


@pytest.mark.parametrize("leaps", [True, False])
def test_a_busy_decode_worker_writes_the_blocks_of_a_prompt_between_two_steps(leaps: bool) -> None:
    """Each step takes 0.1 s. The first request decodes all the time. The second one arrives at 0.05: what is cached is
    looked up at 0.1, and the prompt is computed until 0.2. Of its 16 blocks, 8 are written at 0.3 and 8 at 0.4; at 0.5
    the prompt is looked up again and takes part in the next step.
    """
    on = device(StepCosts(((1.0, 0.1),)), lookahead=1)
    requests = [request(0, 0.0, 10, 100), request(1, 0.05, 1010, 3)]
    run(Layout(on, prefill=1, decode=1, link=LinkSpeed(1e9, 0.001)), requests, leaps=leaps)
    assert requests[1].first == pytest.approx(0.6)
    alone = request(0, 0.0, 1010, 3)
    run(Layout(on, prefill=1, decode=1, link=LinkSpeed(1e9, 0.001)), [alone], leaps=leaps)
    assert alone.first == pytest.approx(0.1 + 0.001 + 1008 * TOKEN_BYTES / 1e9 + 0.1)


def test_as_in_the_papers_the_prefill_worker_has_the_first_token() -> None:
    alone = request(0, 0.0, 100, 2)
    run(Layout(device(lookahead=1), prefill=1, decode=1, link=LINK, first_token="prefill"), [alone])
    assert alone.first == pytest.approx(COSTS.seconds(Shape(100, 1, 0, 100 * 101 // 2)))
    # 96 tokens are in full pages; the decode worker computes the rest, and the first token.
    arrived = alone.first + 96 * TOKEN_BYTES / 1e6 + 0.002
    assert alone.finish == pytest.approx(arrived + COSTS.seconds(Shape(5, 1, 0, 5 * 96 + 15)))


def test_short_prompts_stay_on_the_decode_worker() -> None:
    ran = run(Layout(device(), prefill=1, decode=1, link=LINK), [request(0, 0.0, 200, 2), request(1, 9.0, 300, 2)])
    assert [each.workers for each in ran.requests] == [[1], [0, 1]]


def test_every_request_of_every_layout_is_answered_once() -> None:
    store = Store(40_000, LinkSpeed(1e9), shared=True)
    for layout in (
        Layout(device(cache_tokens=4000), whole=2, store=store),
        Layout(device(cache_tokens=4000), prefill=2, decode=2, link=LINK, store=store),
        Layout(device(cache_tokens=4000), prefill=1, decode=1, link=LINK, first_token="prefill"),
    ):
        load = workload(shared_tokens=200, apps=3, conversations={"more": 0.4, "pause_seconds": 1.0})
        ran = simulated(layout, load)
        answered = [each for each in ran.requests if not each.refused]
        assert len({each.number for each in ran.requests}) == len(ran.requests)
        assert all(each.arrival < each.first <= each.finish for each in answered), layout.name
        assert all(backend.outstanding == backend.transfers == 0 for backend in ran.cluster.backends)
        for backend in ran.cluster.backends:
            (pages,) = backend.worker.scheduler.kv.pages
            assert pages.free + len(pages.idle) == pages.size
            assert backend.worker.most_pages <= pages.size


@pytest.mark.parametrize(("shared", "saved"), [(True, 128), (False, 0)])
def test_another_worker_reads_the_first_turn_of_a_conversation_from_a_shared_store(shared: bool, saved: int) -> None:
    """The first worker is busy by then. 100 tokens of the prompt and 28 of the answer are 8 full pages."""
    second = SimulatedRequest(3, 0.0, [Segment(-1, 100), Segment(0, 29), Segment(-4, 50)], 4)
    first = SimulatedRequest(0, 0.0, [Segment(-1, 100)], 29, turn=(30.0, second))
    others = [request(1, 29.0, 10, 1), request(2, 29.5, 10, 400)]
    layout = Layout(device(), whole=2, store=Store(4000, LINK, shared=shared))
    ran = run(layout, [first, *others])
    assert [each.workers for each in ran.requests] == [[0], [1], [0], [1]]
    assert second.cached_tokens == ran.cluster.stored_tokens == saved
    # The pages are read before the rest is computed.
    cost = COSTS.seconds(Shape(179 - saved, 1, 0, (179 - saved) * saved + (179 - saved) * (180 - saved) // 2))
    read = saved * TOKEN_BYTES / 1e6 + 0.002 * (saved > 0)
    assert second.first_token_seconds == pytest.approx(read + cost)


def test_what_does_not_fit_the_context_is_refused_or_cut_and_counted() -> None:
    ran = run(Layout(device(context=500), whole=1), [request(0, 0.0, 500, 3), request(1, 0.0, 490, 100)])
    summary = summarize(ran, Bounds(1.0, 1.0))
    assert summary.refused == {"its prompt fills the context": 1}
    assert (summary.cut, ran.requests[1].output_tokens) == (1, 11)
    assert summary.in_time == 0.5


def test_the_routers_policy_decides_which_side_answers() -> None:
    fleet = Fleet(10, 400.0, 30.0, sigma=0.0, context=2048, round_trip_seconds=0.1, private_share=0.25)
    layout, load = Layout(device(), whole=1), workload(requests=60, prompt={"kind": "uniform", "least": 1, "most": 400})

    def under(policy: dict[str, Any]) -> Ran:
        return run(layout, load.make(1, Path(), devices=10), near=(fleet, Policy.read({"version": 1, **policy}), 1))

    near = under({"mode": "near-only"})
    assert {each.side for each in near.requests} == {"near"}
    first = near.requests[0]
    assert first.first == pytest.approx(first.arrival + first.prompt_tokens / 400)
    assert first.finish == pytest.approx(first.first + (first.output_tokens - 1) / 30)
    far = under({"mode": "prefer-far"})
    private = [each for each in far.requests if each.side == "near"]
    assert 5 <= len(private) <= 25, "a quarter of 60 are private, and stay"
    assert far.reasons["near: private"] == len(private)
    # A device that is slower than the limit loses once its speed is known.
    quick = under({"mode": "auto", "costs": {"max_first_token_seconds": 0.5}})
    assert 0 < sum(each.side == "far" for each in quick.requests) < 60


@pytest.mark.parametrize(
    ("workers", "message"),
    [
        ({}, "give whole workers, or both prefill and decode workers"),
        ({"whole": 1, "prefill": 1, "decode": 1}, "give whole workers, or both"),
        ({"prefill": 1}, "or both prefill and decode"),
        ({"prefill": 1, "decode": 1}, "need a link"),
    ],
)
def test_impossible_layouts_are_refused(workers: dict[str, int], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Layout(device(), **workers)  # type: ignore[arg-type]
