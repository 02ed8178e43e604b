"""/tokenize and /detokenize: one question, one whole answer."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ..schema.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from .exchange import exchange_of
from .json_body import printable
from .route import WITH_BODY, keyed_router
from .service import Service


def texts_router(service: Service) -> APIRouter:
    router = keyed_router()

    @router.post("/tokenize", response_model=TokenizeResponse, responses=WITH_BODY)
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        exchange = exchange_of(request)
        exchange.log["model"] = printable(body.model)
        executor = await service.models.executor(body.model)
        return _answer(await service.drain.run(executor.tokenize(body), request.receive, exchange.deadline))

    @router.post("/detokenize", response_model=DetokenizeResponse, responses=WITH_BODY)
    async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
        exchange = exchange_of(request)
        exchange.log["model"] = printable(body.model)
        executor = await service.models.executor(body.model)
        return _answer(await service.drain.run(executor.detokenize(body), request.receive, exchange.deadline))

    return router


def _answer(answer: TokenizeResponse | DetokenizeResponse) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")
