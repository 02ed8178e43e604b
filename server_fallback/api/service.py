"""Service: the state that all routes of one app share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import Request

from ..executors.executor import ExecutorState, Models
from ..schema.about import QUEUE_HEADER
from .config import ApiConfig
from .drain import Drain
from .exchange import Exchange
from .limiter import Limits
from .metrics import Metrics
from .queue_waits import QueueWaits
from .traces import Traces


@dataclass(frozen=True, slots=True)
class Service:
    models: Models
    config: ApiConfig
    limits: Limits
    metrics: Metrics
    queue_waits: QueueWaits
    drain: Drain
    traces: Traces | None

    def report_queue(self, states: Mapping[str, ExecutorState], exchange: Exchange) -> None:
        """Report the queue in a header of the answer, if the models' executors report how long answers wait."""
        wait_ms = self.queue_waits.wait_ms(states)
        if wait_ms is not None:
            exchange.answer_headers[QUEUE_HEADER] = str(wait_ms)


def service_of(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
