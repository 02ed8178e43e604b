"""Near and far: users' devices in front of a cluster. The router's own policy decides which side answers a request.

A device computes one request after the other. What its router knows of both sides it has measured on its own answers,
as `Sides` does: speeds, far's queue as the last answer reported it, and near's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nearfar.compiler.shared.script import SharedScript

from ..api.queue_waits import QueueWaits
from ..executors.executor import ExecutorState
from ..router.decision.decide import choose
from ..router.decision.policy import Policy
from ..router.decision.situation import FarState, Message, NearState, Situation
from ..router.sides.far import FarQueue
from ..router.sides.sides import UNKNOWN_SPEED
from ..schema.about import QUEUE_HEADER
from .cluster import Cluster
from .events import Clock
from .request import NEVER, SimulatedRequest

MODEL = "simulated"


@dataclass(frozen=True, slots=True)
class Fleet:
    """``number`` devices. The speeds, in tokens a second, are medians; each device is faster or slower by one factor
    for both, whose logarithm has the standard deviation ``sigma``. Prompts of at most ``context`` tokens, with their
    answers, fit. ``private_share`` of the requests are private.
    """

    number: int
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    sigma: float
    context: int
    round_trip_seconds: float
    private_share: float = 0.0


@dataclass(eq=False)
class UserDevice:
    """``queue`` holds its requests, the running one first."""

    factor: float
    queue: deque[SimulatedRequest] = field(default_factory=deque)
    speeds: dict[str, dict[str, float | None]] = field(
        default_factory=lambda: {"near": {**UNKNOWN_SPEED}, "far": {**UNKNOWN_SPEED}}
    )
    far_queue: FarQueue = field(default_factory=FarQueue)
    near_queue_seconds: float = 0.0


class NearAndFar:
    """``done`` is called with each answered request. The cluster must call `far_done`."""

    def __init__(
        self, clock: Clock, fleet: Fleet, policy: Policy, seed: int, done: Callable[[SimulatedRequest], None]
    ) -> None:
        self._clock, self._fleet, self._policy, self._done = clock, fleet, policy, done
        chance = np.random.default_rng(np.random.SeedSequence([seed, 1]))
        factors = np.exp(fleet.sigma * chance.standard_normal(fleet.number))
        self.devices = [UserDevice(float(factor)) for factor in factors]
        self._chance = chance
        self._waits = QueueWaits()
        self.reasons: dict[str, int] = {}
        self.cluster: Cluster | None = None

    def send(self, request: SimulatedRequest) -> None:
        """A request of a device arrives now."""
        private = bool(self._chance.random() < self._fleet.private_share)
        decision = choose(self._policy, self._situation(request), private=private).decision
        name = f"{decision.side or 'refused'}: {decision.reason}"
        self.reasons[name] = self.reasons.get(name, 0) + 1
        request.side = decision.side
        if decision.side == "near":
            device = self.devices[request.device]
            device.queue.append(request)
            if len(device.queue) == 1:
                self._compute(device)
        elif decision.side == "far":
            assert self.cluster is not None
            cluster = self.cluster
            self._clock.at(self._clock.now + self._fleet.round_trip_seconds / 2, lambda: cluster.send(request))
        else:
            request.refused = f"the policy: {decision.reason}"
            self._done(request)

    def far_done(self, request: SimulatedRequest) -> None:
        """The cluster has answered; its last token is on the way."""
        assert self.cluster is not None
        if request.refused:
            self._done(request)
            return
        queued = request.started - request.arrival - self._fleet.round_trip_seconds / 2
        self._waits.observe(MODEL, max(0.0, queued))
        wait_ms = self._waits.wait_ms({MODEL: ExecutorState(ready=True, detail="", waiting=self.cluster.waiting)})
        half = self._fleet.round_trip_seconds / 2
        request.first += half
        request.finish += half

        def received() -> None:
            device = self.devices[request.device]
            device.far_queue.update({QUEUE_HEADER: str(wait_ms)}, self._clock.now)
            self._learn(device, "far", request, queued)
            self._done(request)

        self._clock.at(request.finish, received)

    def _situation(self, request: SimulatedRequest) -> Situation:
        device, prompt = self.devices[request.device], request.prompt_tokens
        near, far = device.speeds["near"], device.speeds["far"]
        return Situation(
            messages=(Message("user", ""),),
            near=NearState(
                available=True, context=self._fleet.context, prompt_tokens=prompt,
                queue_seconds=device.near_queue_seconds if len(device.queue) > 1 else 0.0,
                prefill_tokens_per_second=near["prefill_tokens_per_second"],
                decode_tokens_per_second=near["decode_tokens_per_second"],
            ),
            far=FarState(
                online=True, prompt_tokens=prompt, queue_seconds=device.far_queue.seconds(self._clock.now),
                round_trip_seconds=far["round_trip_seconds"],
                prefill_tokens_per_second=far["prefill_tokens_per_second"],
                decode_tokens_per_second=far["decode_tokens_per_second"],
            ),
            max_tokens=request.output_tokens,
        )  # fmt: skip

    def _compute(self, device: UserDevice) -> None:
        request, fleet = device.queue[0], self._fleet
        request.started = self._clock.now
        request.first = request.started + request.prompt_tokens / (fleet.prefill_tokens_per_second * device.factor)
        between = 1 / (fleet.decode_tokens_per_second * device.factor)
        request.finish = request.first + between * (request.output_tokens - 1)

        def finished() -> None:
            device.queue.popleft()
            device.near_queue_seconds = request.started - request.arrival
            self._learn(device, "near", request, device.near_queue_seconds)
            if device.queue:
                self._compute(device)
            self._done(request)

        self._clock.at(request.finish, finished)

    def _learn(self, device: UserDevice, side: str, request: SimulatedRequest, queued: float) -> None:
        assert request.finish != NEVER
        finished: dict[str, Any] = {
            "usage": {
                "prompt_tokens": request.prompt_tokens,
                "completion_tokens": request.output_tokens,
                "prompt_tokens_details": {"cached_tokens": request.cached_tokens},
                "queue_ms": 1000 * max(0.0, queued),
            },
            "tokens": request.output_tokens,
            "first_token_seconds": request.first_token_seconds,
            "total_seconds": request.finish - request.arrival,
            "round_trip_seconds": self._fleet.round_trip_seconds if side == "far" else None,
        }
        device.speeds[side] = SharedScript.of_thread().ask("speedAfter", device.speeds[side], finished)
