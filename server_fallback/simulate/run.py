"""Run: one simulation of a cluster under a load, with devices of users in front of it or without."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..router.decision.policy import Policy
from .cluster import Cluster
from .events import Clock
from .layout import Layout
from .near import Fleet, NearAndFar
from .request import SimulatedRequest


class Judge(Protocol):
    """Ends a simulation when enough is known: `Verdict`. Both methods return True for that."""

    def deadlines(self, request: SimulatedRequest) -> Iterable[float]:
        """How many seconds after the arrival of a request to call `late`."""

    def late(self, request: SimulatedRequest, waited: float) -> bool:
        """A request has ``waited`` that long, and may have been answered."""

    def answered(self, request: SimulatedRequest) -> bool:
        """A request was answered or refused."""


@dataclass(frozen=True, slots=True)
class Ran:
    """``requests`` are all, in the order of their numbers, and ``seconds`` the time until the last one was answered.
    ``reasons`` counts the router's decisions.
    """

    requests: Sequence[SimulatedRequest]
    cluster: Cluster
    seconds: float
    reasons: dict[str, int] = field(default_factory=dict)


def run(
    layout: Layout,
    arrivals: Sequence[SimulatedRequest],
    *,
    clients: int | None = None,
    near: tuple[Fleet, Policy, int] | None = None,
    judge: Judge | None = None,
    leaps: bool = True,
) -> Ran:
    """``arrivals`` as `Workload.make` returns them. ``clients``: that many of them are sent at first, and another one
    whenever one is answered. ``near``: devices, their policy, and the seed of their speeds. ``judge`` may end the
    simulation before all requests are answered.
    """
    clock = Clock()
    requests: list[SimulatedRequest] = []
    rest = iter(arrivals)

    def arrive(request: SimulatedRequest) -> None:
        request.arrival = clock.now
        requests.append(request)
        side.send(request)
        for seconds in judge.deadlines(request) if judge is not None else ():
            clock.at(clock.now + seconds, lambda waited=seconds: look(request, waited))  # type: ignore[misc]

    def look(request: SimulatedRequest, waited: float) -> None:
        if judge is not None and judge.late(request, waited):
            clock.stop()

    def done(request: SimulatedRequest) -> None:
        if judge is not None and judge.answered(request):
            clock.stop()
            return
        if request.turn is not None:
            pause, following = request.turn
            clock.at(clock.now + pause, lambda: arrive(following))
        if clients is not None and (queued := next(rest, None)) is not None:
            clock.at(clock.now, lambda: arrive(queued))

    side: Cluster | NearAndFar
    if near is None:
        side = cluster = Cluster(clock, layout, done, leaps=leaps)
    else:
        side = NearAndFar(clock, *near, done)
        side.cluster = cluster = Cluster(clock, layout, side.far_done, leaps=leaps)
    first = arrivals if clients is None else [request for _, request in zip(range(clients), rest, strict=False)]
    for request in first:
        clock.at(request.arrival, lambda request=request: arrive(request))  # type: ignore[misc]
    # Millions of small objects without cycles: collections find nothing and take a quarter of the time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        clock.run()
    finally:
        if was_enabled:
            gc.enable()
    requests.sort(key=lambda request: request.number)
    reasons = side.reasons if isinstance(side, NearAndFar) else {}
    return Ran(requests, cluster, max((request.finish for request in requests), default=0.0), reasons)
