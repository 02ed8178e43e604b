"""Summary: the figures of one simulation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any, NamedTuple

from ..bench.summary import Percentiles, percentiles
from .request import NEVER, SimulatedRequest
from .run import Ran

# In seconds: a token that comes exactly in time is not late.
CLOCK_ERROR = 1e-9


class Limit(NamedTuple):
    """``holds`` must be true for ``share`` of all requests. It cannot be for one whose first or last token takes longer
    than ``first_seconds`` or ``finish_seconds`` after its arrival.
    """

    holds: Callable[[SimulatedRequest], bool]
    share: float
    first_seconds: Callable[[SimulatedRequest], float] = lambda _: inf
    finish_seconds: Callable[[SimulatedRequest], float] = lambda _: inf


@dataclass(frozen=True, slots=True)
class Bounds:
    """A request is answered in time if its first token comes within ``first_token_seconds``, and its others with a mean
    gap of at most ``token_seconds``. ``share`` of all requests must be.
    """

    first_token_seconds: float
    token_seconds: float
    share: float = 0.9

    @property
    def limits(self) -> tuple[Limit, ...]:
        return (Limit(self.holds, self.share, lambda _: self.first_token_seconds, self._finish_seconds),)

    def holds(self, request: SimulatedRequest) -> bool:
        between = request.token_seconds
        in_time = request.first_token_seconds <= self.first_token_seconds
        return in_time and (between is None or between <= self.token_seconds)

    def _finish_seconds(self, request: SimulatedRequest) -> float:
        return self.first_token_seconds + self.token_seconds * (request.output_tokens - 1)


class Verdict:
    """Whether all ``limits`` hold for ``count`` requests, as soon as that is certain: ``holds`` is None before."""

    def __init__(self, limits: Sequence[Limit], count: int) -> None:
        self._limits, self._left = limits, count
        # How many more requests may miss each limit.
        self._misses = [most_misses(limit.share, count) for limit in limits]
        self._answered = set[int]()
        # By limit, the requests that have missed it and are not answered yet.
        self._late = [set[int]() for _ in limits]
        self.holds: bool | None = None

    def deadlines(self, request: SimulatedRequest) -> set[float]:
        """When to ask whether an arriving request is `late`, in seconds from now."""
        found = {each(request) for limit in self._limits for each in (limit.first_seconds, limit.finish_seconds)}
        return {seconds + CLOCK_ERROR for seconds in found if seconds < inf}

    def late(self, request: SimulatedRequest, waited: float) -> bool:
        """Count the limits that a request has missed after ``waited`` seconds. True if the verdict is certain."""
        if request.number in self._answered:
            return False
        for index, limit in enumerate(self._limits):
            is_missed = limit.finish_seconds(request) < waited or (
                request.first == NEVER and limit.first_seconds(request) < waited
            )
            if is_missed and request.number not in self._late[index]:
                self._late[index].add(request.number)
                self._misses[index] -= 1
        return self._conclude()

    def answered(self, request: SimulatedRequest) -> bool:
        """Count a request that was answered or refused. True if the verdict is certain."""
        self._left -= 1
        self._answered.add(request.number)
        for index, limit in enumerate(self._limits):
            if request.number in self._late[index]:
                self._late[index].remove(request.number)
            elif request.refused or not limit.holds(request):
                self._misses[index] -= 1
        return self._conclude()

    def _conclude(self) -> bool:
        if min(self._misses) < 0:
            self.holds = False
        elif all(misses >= self._left - len(late) for misses, late in zip(self._misses, self._late, strict=True)):
            self.holds = True
        return self.holds is not None


def most_misses(share: float, count: int) -> int:
    """How many of ``count`` requests may miss a limit that must hold for a share of them."""
    return max(misses for misses in range(count + 1) if (count - misses) / count >= share)


@dataclass(frozen=True, slots=True)
class SimulatedSummary:
    """``refused`` counts requests that nobody answered, by the reason, and ``cut`` answers that the context ended. The
    other figures are of answers. ``cached_tokens`` of prompts were in a cache, ``stored_tokens`` of them came from a
    store. ``in_time`` is the share of all requests that the bounds hold for, None without bounds. ``near_share`` of the
    answers are the devices'. ``busy`` is the share of the time in which each worker's device computed, ``pages`` the
    largest share of its pages that was in use. ``role_changes``: how often a worker joined the mixed pool, None if
    workers keep their roles. ``decisions`` are the router's.
    """

    layout: str
    gpus: int
    requests: int
    refused: dict[str, int]
    cut: int
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    stored_tokens: int
    completion_tokens: int
    requests_per_second: float
    completion_tokens_per_second: float
    time_to_first_token_seconds: Percentiles
    token_seconds: Percentiles
    request_seconds: Percentiles
    in_time: float | None
    near_share: float
    preemptions: int
    steps: int
    busy: tuple[float, ...]
    pages: tuple[float, ...]
    role_changes: int | None
    decisions: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarize(ran: Ran, bounds: Bounds | None) -> SimulatedSummary:
    answered = [request for request in ran.requests if not request.refused]
    workers = [backend.worker for backend in ran.cluster.backends]
    seconds = ran.seconds or 1.0
    output = sum(request.output_tokens for request in answered)
    between = [each for request in answered if (each := request.token_seconds) is not None]
    return SimulatedSummary(
        layout=ran.cluster.layout.name,
        gpus=ran.cluster.layout.gpus,
        requests=len(ran.requests),
        refused=dict(Counter(request.refused for request in ran.requests if request.refused).most_common()),
        cut=sum(request.is_cut for request in answered),
        seconds=ran.seconds,
        prompt_tokens=sum(request.prompt_tokens for request in answered),
        cached_tokens=sum(request.cached_tokens for request in answered),
        stored_tokens=ran.cluster.stored_tokens,
        completion_tokens=output,
        requests_per_second=len(answered) / seconds,
        completion_tokens_per_second=output / seconds,
        time_to_first_token_seconds=percentiles([request.first_token_seconds for request in answered]),
        token_seconds=percentiles(between),
        request_seconds=percentiles([request.finish - request.arrival for request in answered]),
        in_time=None if bounds is None else share_in_time(ran, bounds),
        near_share=sum(request.side == "near" for request in answered) / max(1, len(answered)),
        preemptions=sum(worker.scheduler.preemptions for worker in workers),
        steps=sum(worker.steps for worker in workers),
        busy=tuple(worker.busy_seconds / seconds for worker in workers),
        pages=tuple(worker.most_pages / worker.device.pages for worker in workers),
        role_changes=None if ran.cluster.pools is None else ran.cluster.pools.changes,
        decisions=dict(sorted(ran.reasons.items())),
    )


def share_in_time(ran: Ran, bounds: Bounds) -> float:
    """Of all requests; a refused one is not answered in time."""
    return sum(not request.refused and bounds.holds(request) for request in ran.requests) / max(1, len(ran.requests))
