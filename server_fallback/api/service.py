"""Service: what all routes of one app share."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from ..executors.models import Models
from .config import ApiConfig
from .drain import Drain
from .limiter import Limiter
from .metrics import Metrics
from .traces import Traces


@dataclass(frozen=True, slots=True)
class Service:
    models: Models
    config: ApiConfig
    limiter: Limiter
    metrics: Metrics
    drain: Drain
    traces: Traces | None


def service_of(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
