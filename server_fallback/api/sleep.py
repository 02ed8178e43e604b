"""/sleep, /wake_up, /is_sleeping and /reset_prefix_cache, as in vLLM, for admins. A model that sleeps holds no memory,
on the device or in a process, until it is woken.
"""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from nearfar.compiler.runtime.errors import RequestError

from ..executors.executor import CachesPrefixes
from ..executors.model_table import ASLEEP
from .exchange import exchange_of
from .model_changes import ModelChanges
from .model_routes import to_its_end
from .route import WITH_BODY, AdminRoute, keyed_router
from .service import Service


def sleep_router(service: Service) -> APIRouter:
    router = keyed_router(AdminRoute)

    def names(model: str | None) -> list[str]:
        """The models that a request is about: the one that it names, or all. Raises UnknownModel."""
        return list(service.models.states()) if model is None else [service.root_of(model)]

    def changes(request: Request) -> ModelChanges:
        exchange = exchange_of(request)
        return ModelChanges(service.models, exchange.client, exchange.address)

    @router.post("/sleep", responses=WITH_BODY)
    async def sleep(
        request: Request,
        model: str | None = None,
        level: Literal["1", "2"] = "1",  # noqa: ARG001
    ) -> JSONResponse:
        """Free the memory of all models, or of ``model`` (extension). Running answers end first; new requests are a 503
        with the code model_asleep. ``level`` 1 and 2 are the same: level 1 of vLLM keeps the weights in the memory of
        the CPU, and ours are mapped from the bundle's files again.
        """
        found = names(model)
        for name in found:
            await to_its_end(changes(request).sleep(name))
        return JSONResponse({"asleep": found})

    @router.post("/wake_up", responses=WITH_BODY)
    async def wake_up(request: Request, model: str | None = None) -> JSONResponse:
        """Open the models that sleep, or ``model`` (extension)."""
        found = names(model)
        for name in found:
            await to_its_end(changes(request).wake(name))
        return JSONResponse({"awake": found})

    @router.get("/is_sleeping", responses=WITH_BODY)
    async def is_sleeping(model: str | None = None) -> JSONResponse:
        """Whether all models sleep, or ``model`` (extension) does."""
        states = service.models.states()
        return JSONResponse({"is_sleeping": all(states.get(name) == ASLEEP for name in names(model))})

    @router.post("/reset_prefix_cache", responses=WITH_BODY)
    async def reset_prefix_cache(model: str | None = None) -> JSONResponse:
        """Let no later request use what was computed before, in any model or in ``model`` (extension)."""
        reset = list[str]()
        for name in names(model):
            # Among all models, those that sleep or load have no prefix cache. One that was named is reported.
            executor = await (service.answering(name) if model is None else service.models.executor(name))
            if isinstance(executor, CachesPrefixes):
                await executor.reset_prefix_cache()
                reset.append(name)
        if not reset:
            raise RequestError("none of these models has a prefix cache on this machine", param="model")
        return JSONResponse({"reset": reset})

    return router
