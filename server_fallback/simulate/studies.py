"""Studies: searches and comparisons over many simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path

from nearfar.compiler.runtime.errors import RequestError

from .layout import Layout
from .run import Ran, run
from .scenario import Scenario
from .summary import Limit, SimulatedSummary, Verdict, summarize
from .workload import Clients, Workload, all_requests

# The highest rate that holds and the lowest that does not differ by this share.
PRECISION = 0.02
# A search begins with steps of 8 %, and doubles them until it has passed the rate.
FIRST_STRIDE = 4
# Below this rate for each GPU, a single request misses the bounds.
LEAST_RATE = 1e-3
# Above this one, all requests arrive at once.
MOST_RATE = 1e4
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


class GoodputSearch:
    """The highest rate of a layout at which all limits hold. Rates are powers of 1 + PRECISION, so two searches of a
    layout find the same one, wherever they begin; it is assumed that what holds at a rate holds at all lower ones.
    A simulation ends as soon as its outcome is certain.
    """

    def __init__(self, layout: Layout, workload: Workload, limits: Sequence[Limit], seed: int) -> None:
        self.layout, self._workload, self._limits, self._seed = layout, workload, limits, seed
        self._known: dict[int, bool] = {}

    def exceeds(self, rate: float) -> bool:
        """Whether the limits hold at the next rate after this one, which a search has found."""
        return self._holds(exponent_of(rate) + 1)

    def find(self, near_rate: float) -> Goodput:
        """``near_rate`` is a guess. Raises RequestError if the limits hold at all rates."""
        low: int | None = None
        high: int | None = None
        least, at, stride = exponent_of(LEAST_RATE * self.layout.gpus), exponent_of(near_rate), FIRST_STRIDE
        most = exponent_of(MOST_RATE * self.layout.gpus)
        while low is None or high is None:
            if at > most:
                raise RequestError(
                    f"{self.layout.name}: the bounds hold even if all requests arrive at once; simulate more requests"
                )
            if self._holds(at):
                low, at = at, at + stride
            elif at <= least:
                return Goodput(self.layout, 0.0)
            else:
                high, at = at, max(least, at - stride)
            stride *= 2
        while high - low > 1:
            middle = (low + high) // 2
            if self._holds(middle):
                low = middle
            else:
                high = middle
        return Goodput(self.layout, (1 + PRECISION) ** low)

    def _holds(self, exponent: int) -> bool:
        if exponent not in self._known:
            requests = self._workload.at_rate((1 + PRECISION) ** exponent).make(self._seed, Path())
            verdict = Verdict(self._limits, len(all_requests(requests)))
            run(self.layout, requests, judge=verdict)
            assert verdict.holds is not None
            self._known[exponent] = verdict.holds
        return self._known[exponent]


def exponent_of(rate: float) -> int:
    """That of the nearest power of 1 + PRECISION."""
    return round(log(rate) / log(1 + PRECISION))


@dataclass(frozen=True, slots=True)
class Split:
    """The goodput of ``gpus`` as whole workers and in the best split that was found; None if no split has so few."""

    gpus: int
    whole: Goodput
    apart: Goodput | None


def splits(scenario: Scenario, folder: Path, progress: Progress) -> Iterator[Split]:
    """For more and more GPUs. The best split of a number is searched from the proportion of the one before it, a worker
    at a time, while it gets better. One simulation is enough to see that a split is no
    better.
    """
    assert scenario.bounds is not None
    assert scenario.cluster.gpus is not None
    bounds = scenario.bounds.made()
    device = scenario.device.made(folder)
    decode = device if scenario.decode_device is None else scenario.decode_device.made(folder)
    searches: dict[tuple[int, int, int], GoodputSearch] = {}

    def search(*, whole: int = 0, prefill: int = 0, decode: int = 0) -> GoodputSearch:
        key = (whole, prefill, decode)
        if key not in searches:
            # Whole workers have no other role to change to.
            others = {"mixed_pool": None} if whole else {}
            layout = scenario.layout(folder, whole=whole, prefill=prefill, decode=decode, **others)
            searches[key] = GoodputSearch(layout, scenario.workload, bounds.limits, scenario.seed)
        return searches[key]

    def found(searched: GoodputSearch, near_rate: float) -> Goodput:
        goodput = searched.find(near_rate)
        progress(f"{goodput.layout.name}: {goodput.rate:.2f} requests/s")
        return goodput

    share = 0.5
    # Of the last number of workers, for each of them.
    whole_rate = apart_rate = float(device.gpus)
    most = scenario.cluster.gpus
    for workers in range(1, most // device.gpus + 1):
        gpus = workers * device.gpus
        whole = found(search(whole=workers), whole_rate * workers)
        whole_rate = whole.rate / workers or whole_rate
        best: Goodput | None = None
        # Prefill workers, and as many decode workers as the rest of the GPUs makes.
        pairs = [(count, (gpus - count * device.gpus) // decode.gpus) for count in range(1, workers + 1)]
        pairs = [pair for pair in pairs if pair[1] > 0]
        if pairs:
            index = min(range(len(pairs)), key=lambda each: abs(pairs[each][0] / workers - share))
            best = found(search(prefill=pairs[index][0], decode=pairs[index][1]), apart_rate * workers)
            for direction in (-1, 1):
                at = index + direction
                while 0 <= at < len(pairs):
                    other = search(prefill=pairs[at][0], decode=pairs[at][1])
                    if not (other.exceeds(best.rate) if best.rate else other.find(apart_rate * workers).rate):
                        break
                    best, at = found(other, best.rate or apart_rate * workers), at + direction
            share = best.layout.prefill / workers
            apart_rate = best.rate / workers or apart_rate
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
        progress("1 worker" if whole == 1 else f"{whole} workers")
