"""Studies: searches and comparisons over many simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from .layout import Layout
from .run import Ran, run
from .scenario import Scenario
from .summary import Bounds, SimulatedSummary, share_in_time, summarize
from .workload import Clients, Workload

# A search ends when the highest rate that holds and the lowest that does not differ by less.
PRECISION = 0.02
# Below this rate for each GPU, a single request misses the bounds.
LEAST_RATE = 1e-3
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Goodput:
    """``rate`` is the highest rate, in requests a second, at which the bounds hold; 0 if they never do."""

    layout: Layout
    rate: float

    @property
    def per_gpu(self) -> float:
        return self.rate / self.layout.gpus


def simulate(scenario: Scenario, folder: Path, layout: Layout) -> Ran:
    """The scenario with this layout."""
    near, workload = scenario.near, scenario.workload
    arrivals = workload.make(scenario.seed, folder, devices=1 if near is None else near.devices)
    clients = workload.arrivals.number if isinstance(workload.arrivals, Clients) else None
    fleet = None if near is None else (near.made(), near.read_policy(folder), scenario.seed)
    return run(layout, arrivals, clients=clients, near=fleet)


def goodput(
    layout: Layout, workload: Workload, bounds: Bounds, seed: int, *, near_rate: float | None = None
) -> Goodput:
    """Search the rate. ``near_rate`` is a guess."""

    def holds(rate: float) -> bool:
        requests = workload.at_rate(rate).make(seed, Path())
        return share_in_time(run(layout, requests), bounds) >= bounds.share

    low, high = 0.0, float("inf")
    rate = near_rate or float(layout.gpus)
    while high > low * (1 + PRECISION):
        if rate < LEAST_RATE * layout.gpus:
            return Goodput(layout, 0.0)
        if holds(rate):
            low = rate
        else:
            high = rate
        rate = low * 1.5 if high == float("inf") else high / 1.5 if low == 0 else (low + high) / 2
    return Goodput(layout, low)


@dataclass(frozen=True, slots=True)
class Split:
    """The goodput of ``gpus`` as whole workers and in the best split that was found; None if no split has so few."""

    gpus: int
    whole: Goodput
    apart: Goodput | None


def splits(scenario: Scenario, folder: Path, progress: Progress) -> Iterator[Split]:
    """For more and more GPUs. The best split of a number is searched from the proportion of the one before it, a worker
    at a time, while it gets better.
    """
    assert scenario.bounds is not None
    assert scenario.cluster.gpus is not None
    bounds, workload, seed = scenario.bounds.made(), scenario.workload, scenario.seed
    device = scenario.device.made(folder)
    decode = device if scenario.decode_device is None else scenario.decode_device.made(folder)
    known: dict[tuple[int, int, int], Goodput] = {}

    def measured(guess: float | None, *, whole: int = 0, prefill: int = 0, decode: int = 0) -> Goodput:
        key = (whole, prefill, decode)
        if key not in known:
            layout = scenario.layout(folder, whole=whole, prefill=prefill, decode=decode)
            known[key] = goodput(layout, workload, bounds, seed, near_rate=guess)
            progress(f"{layout.name}: {known[key].rate:.2f} requests/s")
        return known[key]

    share, best_rate = 0.5, None
    most = scenario.cluster.gpus
    for workers in range(1, most // device.gpus + 1):
        gpus = workers * device.gpus
        whole = measured(best_rate, whole=workers)
        best: Goodput | None = None
        # Prefill workers, and as many decode workers as the rest of the GPUs makes.
        pairs = [(count, (gpus - count * device.gpus) // decode.gpus) for count in range(1, workers + 1)]
        pairs = [pair for pair in pairs if pair[1] > 0]
        if pairs:
            index = min(range(len(pairs)), key=lambda each: abs(pairs[each][0] / workers - share))
            best = measured(whole.rate or None, prefill=pairs[index][0], decode=pairs[index][1])
            for direction in (-1, 1):
                at = index + direction
                while 0 <= at < len(pairs):
                    found = measured(best.rate or None, prefill=pairs[at][0], decode=pairs[at][1])
                    if found.rate <= best.rate:
                        break
                    best, at = found, at + direction
            share = best.layout.prefill / workers
        best_rate = whole.rate * (workers + 1) / workers or None
        yield Split(gpus, whole, best)


def break_even(found: list[Split]) -> int | None:
    """The smallest number of GPUs at which a split is at least as good as whole workers; None if a split never is."""
    return next(
        (split.gpus for split in found if split.apart is not None and split.apart.rate >= split.whole.rate > 0), None
    )


def caches(scenario: Scenario, folder: Path) -> list[tuple[str, SimulatedSummary]]:
    """The same load without a store of prefixes, with one for each worker, and with a shared one of the same size."""
    bounds = None if scenario.bounds is None else scenario.bounds.made()
    layout = scenario.layout(folder)
    assert layout.store is not None
    kinds = {
        "no store": None,
        "a store for each worker": replace(layout.store, shared=False),
        "one shared store": replace(layout.store, shared=True),
    }
    return [
        (name, summarize(simulate(scenario, folder, replace(layout, store=store)), bounds))
        for name, store in kinds.items()
    ]


def near_and_far(scenario: Scenario, folder: Path, progress: Progress) -> Iterator[SimulatedSummary]:
    """The devices in front of more and more whole workers."""
    assert scenario.cluster.gpus is not None
    bounds = None if scenario.bounds is None else scenario.bounds.made()
    device = scenario.device.made(folder)
    for whole in range(1, scenario.cluster.gpus // device.gpus + 1):
        yield summarize(simulate(scenario, folder, scenario.layout(folder, whole=whole)), bounds)
        progress(f"{whole} workers")
