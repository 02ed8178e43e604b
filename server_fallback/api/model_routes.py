"""/v1/models and /v1/nearfar/about list the models; for admins: load and unload models and LoRA adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from nearfar.compiler.runtime.errors import NearfarError

from ..executors.executor import Executor, TellsAbilities, UnknownModel
from ..schema.about import API_VERSION, About, ModelAbout
from ..schema.common import ErrorResponse
from ..schema.models import LoadAdapterRequest, LoadRequest, ModelCard, ModelList, UnloadAdapterRequest, UnloadRequest
from .document import in_json
from .errors import loading_error
from .exchange import exchange_of
from .model_changes import ModelChanges
from .route import EVERYWHERE, WITH_BODY, AdminRoute, ListRoute, keyed_router
from .service import Service

Result = TypeVar("Result")


def models_router(service: Service) -> APIRouter:
    router = keyed_router(ListRoute)

    @router.get("/v1/models", responses=EVERYWHERE)
    async def list_models() -> ModelList:
        return ModelList(data=list(service.models.cards()))

    # A model's name may contain slashes.
    @router.get("/v1/models/{model:path}", responses={**EVERYWHERE, 404: in_json(ErrorResponse)})
    async def one_model(model: str) -> ModelCard:
        for card in service.models.cards():
            if card.id == model:
                return card
        if model in ("load", "unload"):
            raise HTTPException(405, headers={"Allow": "POST"})
        names = ", ".join(card.id for card in service.models.cards())
        raise UnknownModel(f"the model {model[:100]!r} does not exist here; available: {names or 'none'}")

    return router


def about_router(service: Service) -> APIRouter:
    """The version of our extensions and the abilities of each model, for clients that share answers with this
    server.
    """
    router = keyed_router()

    @router.get("/v1/nearfar/about", responses=EVERYWHERE)
    async def about(request: Request) -> About:
        executors = list[tuple[ModelCard, Executor]]()
        for card in service.models.cards():
            if (executor := await service.answering(card.id)) is not None:
                executors.append((card, executor))
        hears = service.config.transcriber is not None
        service.report_queue({card.id: executor.state() for card, executor in executors}, exchange_of(request))
        return About(
            api_version=API_VERSION, models=[_model_about(card, executor, hears) for card, executor in executors]
        )

    return router


def admin_router(service: Service) -> APIRouter:
    router = keyed_router(AdminRoute)

    def changes(request: Request) -> ModelChanges:
        exchange = exchange_of(request)
        return ModelChanges(service.models, exchange.client, exchange.address)

    @router.post("/v1/models/load", responses=WITH_BODY)
    async def load(body: LoadRequest, request: Request) -> ModelCard:
        return await to_its_end(changes(request).load(body))

    @router.post("/v1/models/unload", responses=WITH_BODY)
    async def unload(body: UnloadRequest, request: Request) -> JSONResponse:
        await to_its_end(changes(request).unload(body.model))
        return JSONResponse({"id": body.model, "unloaded": True})

    @router.post("/v1/load_lora_adapter", responses=WITH_BODY)
    async def load_adapter(body: LoadAdapterRequest, request: Request) -> ModelCard:
        return await to_its_end(changes(request).load_adapter(body))

    @router.post("/v1/unload_lora_adapter", responses=WITH_BODY)
    async def unload_adapter(body: UnloadAdapterRequest, request: Request) -> JSONResponse:
        await to_its_end(changes(request).unload_adapter(body))
        return JSONResponse({"id": body.lora_name, "unloaded": True})

    return router


def _model_about(card: ModelCard, executor: Executor, hears: bool) -> ModelAbout:
    """``hears``: the server has a transcriber."""
    if not isinstance(executor, TellsAbilities):
        # An upstream receives tools unchanged, and reports its own errors.
        return ModelAbout(id=card.id, context=card.max_model_len, tools=True, sound=hears)
    can = executor.abilities()
    return ModelAbout(
        id=card.id,
        model=can.model,
        context=card.max_model_len,
        tokenizer_sha256=can.tokenizer_sha256,
        vocab_size=can.vocab_size,
        tools=can.tools,
        verify=can.verify,
        prefill=can.prefill,
        vision=can.vision,
        video=can.video,
        transcribes=can.sound,
        sound=can.hears or (hears and not can.embeds and not can.sound),
    )


async def to_its_end(change: Coroutine[Any, Any, Result]) -> Result:
    """The change completes even if the client disconnects, so that no model is half loaded."""
    try:
        return await asyncio.shield(asyncio.ensure_future(change))
    except NearfarError as error:
        raise loading_error(error) from error
