"""/health/live, /health/ready and /metrics: for machines that watch, without a key."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from .service import Service

NOT_READY: dict[int | str, dict[str, Any]] = {503: {"description": "A model is not ready, there is none, or the server is shutting down."}}


def health_router(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/health/live")
    async def live() -> dict[str, str]:
        """The process answers."""
        return {"status": "live"}

    @router.get("/health/ready", responses=NOT_READY)
    async def ready() -> JSONResponse:
        """Requests may come: every model is ready, and the server is not on its way out."""
        states = service.models.states()
        ready = bool(states) and all(state.ready for state in states.values()) and not service.drain.started
        status = "shutting down" if service.drain.started else "ready" if ready else "not ready"
        return JSONResponse({"status": status, "models": {name: state.ready for name, state in states.items()}}, 200 if ready else 503)

    @router.get("/metrics", responses={200: {"content": {"text/plain": {}}}}, response_class=Response)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return router
