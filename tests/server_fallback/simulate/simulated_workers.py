"""Devices, loads and runs of simulations for tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nearfar.server_fallback.simulate.costs import StepCosts
from nearfar.server_fallback.simulate.device import Device
from nearfar.server_fallback.simulate.events import Clock
from nearfar.server_fallback.simulate.request import Segment, SimulatedRequest
from nearfar.server_fallback.simulate.worker import Worker

# A step of 20 ms, a little more for more positions, for keys and for pairs.
COSTS = StepCosts(((1.0, 0.020), (64.0, 0.024), (4096.0, 0.4)), row=1e-5, read=6e-7, pair=1.3e-8)


def device(costs: StepCosts = COSTS, cache_tokens: int = 20_000, context: int = 2048, **others: int) -> Device:
    return Device("a test", "this file", costs, cache_tokens, token_bytes=1000, context=context, **others)


def request(number: int, arrival: float, prompt: int, output: int) -> SimulatedRequest:
    return SimulatedRequest(number, arrival, [Segment(-1 - number, prompt)], output)


def serve(
    on: Device, requests: Sequence[SimulatedRequest], *, leaps: bool = True, probes: Iterable[float] = ()
) -> tuple[Worker, list[int], list[SimulatedRequest]]:
    """Run a worker. Returns it, the requests in it at each time of ``probes``, and the finished ones in their order."""
    clock, inside, finished = Clock(), list[int](), list[SimulatedRequest]()
    worker = Worker(clock, on, 0, leaps=leaps)

    def arrive(each: SimulatedRequest) -> None:
        worker.add(each, each.prompt(), each.output_tokens, lambda: finished.append(each))

    for each in requests:
        clock.at(each.arrival, lambda each=each: arrive(each))  # type: ignore[misc]
    scheduler = worker.scheduler
    for at in probes:
        clock.at(at, lambda: inside.append(len(scheduler.running) + len(scheduler.waiting)))
    clock.run()
    return worker, inside, finished
