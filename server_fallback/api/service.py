"""Service: what all routes of one app share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import Request

from ..executors.executor import ExecutorState, Models
from ..schema.about import QUEUE_HEADER
from .config import ApiConfig
from .drain import Drain
from .exchange import Exchange
from .limiter import Limiter
from .metrics import Metrics
from .queue_waits import QueueWaits
from .traces import Traces


@dataclass(frozen=True, slots=True)
class Service:
    models: Models
    config: ApiConfig
    limiter: Limiter
    metrics: Metrics
    queue_waits: QueueWaits
    drain: Drain
    traces: Traces | None

    def tell_queue(self, states: Mapping[str, ExecutorState], exchange: Exchange) -> None:
        """In a header of the answer, where the models' executors tell how long answers wait."""
        told_ms = self.queue_waits.told_ms(states)
        if told_ms is not None:
            exchange.answer_headers[QUEUE_HEADER] = str(told_ms)


def service_of(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
