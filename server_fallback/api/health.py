"""/health, /health/live, /health/ready, /health/startup, /version and /metrics: for monitoring. They need no key and do
not count against the limits.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from .service import Service

NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {"description": "No model is ready, the transcriber still loads, or the server is shutting down."}
}


def health_router(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get(
        "/health",
        responses={200: {"description": "Like /health/ready, without a body."}, **NOT_READY},
        response_class=Response,
    )
    async def health() -> Response:
        return Response(status_code=200 if _is_ready(service) else 503)

    @router.get("/health/live")
    async def live() -> dict[str, str]:
        """The process is running."""
        return {"status": "live"}

    @router.get("/health/ready", responses=NOT_READY)
    async def ready() -> JSONResponse:
        """At least one model can answer, or is loaded by its first request, the transcriber has been loaded, and the
        server is not shutting down. ``not_ready`` states why the others cannot, and ``degraded`` what of those that are
        ready does not work.
        """
        states, is_ready, loading = service.models.states(), _is_ready(service), service.loading
        not_ready = {name: state.detail for name, state in states.items() if not state.ready}
        if loading is not None:
            not_ready.setdefault(loading, "loading")
        degraded = {name: state.degraded for name, state in states.items() if state.degraded is not None}
        status = "shutting down" if service.drain.started else "ready" if is_ready else "not ready"
        return JSONResponse(
            {
                "status": status,
                "models": {name: state.ready for name, state in states.items()} | dict.fromkeys(not_ready, False),
                "not_ready": not_ready,
                **({"degraded": degraded} if degraded else {}),
            },
            200 if is_ready else 503,
        )

    @router.get("/health/startup", responses={503: {"description": "The server still loads models."}})
    async def startup() -> JSONResponse:
        """The server has loaded all models that it was started with; this does not change any more. Until then, it may
        take minutes, and nothing is wrong.
        """
        loading = [name for name, state in service.models.states().items() if not state.ready]
        body = {"status": "started"} if service.started else {"status": "starting", "loading": loading}
        return JSONResponse(body, 200 if service.started else 503)

    @router.get("/version")
    async def server_version() -> dict[str, str]:
        """The version of nearfar, in the form of vLLM's answer."""
        return {"version": version("nearfar")}

    @router.get("/metrics", responses={200: {"content": {"text/plain": {}}}}, response_class=Response)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return router


def _is_ready(service: Service) -> bool:
    if service.drain.started or service.loading is not None:
        return False
    return any(state.ready for state in service.models.states().values()) or service.loads_others()
