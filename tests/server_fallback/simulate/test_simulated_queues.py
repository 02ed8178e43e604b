"""A simulated worker against formulas of queueing theory, which know nothing of schedulers."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_workers import COSTS, device, request, serve

from nearfar.server_fallback.simulate.costs import Shape, StepCosts


def test_requests_of_one_step_wait_as_in_an_m_d_1_queue() -> None:
    """One by one as Lindley's recursion has it, and on average as Pollaczek and Khinchin: load * service / (2 (1 -
    load)).
    """
    service, load, count, simulated = 0.02, 0.6, 100_000, 1500
    gaps = np.random.default_rng(3).exponential(service / load, count)
    arrivals = np.cumsum(gaps[:simulated])
    requests = [request(number, float(at), 5, 1) for number, at in enumerate(arrivals)]
    serve(device(StepCosts(((1.0, service),)), sequences=1), requests)
    expected = [0.0]
    for gap in gaps[1:].tolist():
        expected.append(max(0.0, expected[-1] + service - gap))
    assert [each.first_token_seconds - service for each in requests] == pytest.approx(expected[:simulated], abs=1e-9)
    assert np.mean(expected) == pytest.approx(load * service / (2 * (1 - load)), rel=0.03)


def test_the_number_of_requests_inside_follows_littles_law() -> None:
    """Number = rate * time, counted at moments that nothing depends on."""
    rate, count = 8.0, 800
    chance = np.random.default_rng(5)
    arrivals = np.cumsum(chance.exponential(1 / rate, count))
    requests = [
        request(number, float(at), int(chance.integers(1, 120)), int(chance.integers(1, 120)))
        for number, at in enumerate(arrivals)
    ]
    probes = np.sort(chance.uniform(0, arrivals[-1], 4000))
    _, inside, _ = serve(device(), requests, probes=probes.tolist())
    times = [each.finish - each.arrival for each in requests]
    assert np.mean(inside) == pytest.approx(count / arrivals[-1] * np.mean(times), rel=0.05)


def test_one_request_alone_takes_its_steps_one_after_the_other() -> None:
    """A prompt in chunks of 256, then a step for each further token, each with a key more to read."""
    prompt, output = 600, 30
    alone = request(0, 1.5, prompt, output)
    serve(device(step_tokens=256), [alone])
    chunks = [(0, 256), (256, 256), (512, 88)]
    first = sum(
        COSTS.linear(length) + COSTS.pair * (length * start + length * (length + 1) // 2)
        for start, length in chunks
    ) + COSTS.row  # fmt: skip
    assert alone.first_token_seconds == pytest.approx(first)
    rest = sum(COSTS.seconds(Shape(1, 1, prompt + step, 0)) for step in range(1, output))
    assert alone.finish - alone.first == pytest.approx(rest)


def test_every_request_ends_once_and_pages_stay_within_the_pool() -> None:
    chance = np.random.default_rng(7)
    requests = [
        request(number, number * 0.02, int(chance.integers(1, 900)), int(chance.integers(1, 300)))
        for number in range(80)
    ]
    on = device(cache_tokens=3000)
    worker, _, finished = serve(on, requests)
    (pages,) = worker.scheduler.kv.pages
    assert worker.scheduler.preemptions > 0, "the pool must be too small for all at once"
    assert sorted(each.number for each in finished) == list(range(80))
    assert all(each.arrival <= each.started < each.first <= each.finish for each in requests)
    assert worker.most_pages <= pages.size == on.pages
    assert pages.free + len(pages.idle) == pages.size
    computed = sum(each.prompt_tokens + each.output_tokens - 1 for each in requests)
    # What was preempted was computed again.
    assert worker.computed_tokens >= computed
