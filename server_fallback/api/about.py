"""/v1/nearfar/about: the version of our extensions and what each model can, for clients that share answers with this server."""

from __future__ import annotations

from fastapi import APIRouter, Request

from ..executors.executor import Executor, TellsAbilities
from ..schema.about import API_VERSION, About, ModelAbout
from ..schema.models import ModelCard
from .exchange import exchange_of
from .route import EVERYWHERE, keyed_router
from .service import Service


def about_router(service: Service) -> APIRouter:
    router = keyed_router()

    @router.get("/v1/nearfar/about", responses=EVERYWHERE)
    async def about(request: Request) -> About:
        executors = [(card, await service.models.executor(card.id)) for card in service.models.cards()]
        service.tell_queue({card.id: executor.state() for card, executor in executors}, exchange_of(request))
        return About(api_version=API_VERSION, models=[model_about(card, executor) for card, executor in executors])

    return router


def model_about(card: ModelCard, executor: Executor) -> ModelAbout:
    if not isinstance(executor, TellsAbilities):
        # An upstream gets tools as they come, and answers for itself.
        return ModelAbout(id=card.id, context=card.max_model_len, tools=True)
    can = executor.abilities()
    return ModelAbout(
        id=card.id,
        context=card.max_model_len,
        tokenizer_sha256=can.tokenizer_sha256,
        vocab_size=can.vocab_size,
        tools=can.tools,
        verify=can.verify,
    )
