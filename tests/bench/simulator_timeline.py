"""Where real requests spend the time to their first token, and where simulated ones do, by the timelines that engines
write with `paced_device`.

    reaching    from the client's sending it to the engine's process, through the gateway and the server
    waiting     for the device to begin its first step
    computing   until the engine has read its first token
    returning   to the client
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench_prefill_apart import Request, Result, prompt_of

from nearfar.server_fallback.simulate.request import SimulatedRequest


class Stages(NamedTuple):
    """In seconds."""

    reaching: float
    waiting: float
    computing: float
    returning: float

    @staticmethod
    def medians(stages: Sequence[Stages]) -> dict[str, float]:
        return {name: statistics.median(getattr(each, name) for each in stages) for name in Stages._fields}


class Timelines:
    """The events of all engines that wrote to ``path``. The times of requests count from ``started``."""

    def __init__(self, path: Path, started: float) -> None:
        self._times: dict[tuple[str, tuple[int, ...]], float] = {}
        self._key_tokens = 0
        for file in path.parent.glob(f"{path.name}.*"):
            for line in file.read_text().splitlines():
                event, prompt, at = json.loads(line)
                self._key_tokens = len(prompt)
                self._times[event, tuple(prompt)] = at - started

    def at(self, event: str, number: int, request: Request | Result) -> float:
        """When the engine that answers a request had it ``reached``, ``began`` its first step or read its ``first``
        token.
        """
        return self._times[event, tuple(prompt_of(number, request.prompt_tokens)[: self._key_tokens])]

    def stages(self, number: int, result: Result) -> Stages:
        sent, first = result.sent_seconds or 0.0, result.arrival_seconds + (result.ttft_seconds or 0.0)
        reached, began, read = (self.at(event, number, result) for event in ("reached", "began", "first"))
        return Stages(reached - sent, began - reached, read - began, first - read)


def simulated_stages(request: SimulatedRequest, request_seconds: float) -> Stages:
    """All that a simulated request costs outside the devices comes before it reaches one."""
    reached = request.arrival + request_seconds
    return Stages(request_seconds, request.started - reached, request.first - request.started, 0.0)
