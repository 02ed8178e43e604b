"""/v1/embeddings, /tokenize and /detokenize: a request about texts, and one JSON object as the answer."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from ..executors.executor import Call
from ..schema.embeddings import EmbeddingRequest, EmbeddingResponse
from ..schema.routed import RoutedEmbeddingRequest
from ..schema.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from .errors import ApiError
from .exchange import exchange_of
from .json_body import printable
from .route import WITH_BODY, keyed_router
from .service import Service
from .validation import check_calls

EMBEDDING: dict[str, Any] = {"response_model": EmbeddingResponse, "responses": WITH_BODY}


def embeddings_router(service: Service) -> APIRouter:
    router = keyed_router()

    @router.post("/v1/embeddings", **EMBEDDING)
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        return await _embed(service, body, request)

    return router


def routed_embeddings_router(service: Service) -> APIRouter:
    """The same route if a model is a pair of sides: requests may restrict which side answers."""
    router = keyed_router()

    @router.post("/v1/embeddings", **EMBEDDING)
    async def embeddings(body: RoutedEmbeddingRequest, request: Request) -> Response:
        return await _embed(service, body, request)

    return router


def tokenize_router(service: Service) -> APIRouter:
    router = keyed_router()

    @router.post("/tokenize", response_model=TokenizeResponse, responses=WITH_BODY)
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        check_calls(body.messages or ())
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


async def _embed(service: Service, body: EmbeddingRequest, request: Request) -> Response:
    exchange = exchange_of(request)
    exchange.log["model"] = printable(body.model)
    limit = service.config.max_inputs
    if isinstance(body.input, list) and body.input and not isinstance(body.input[0], int) and len(body.input) > limit:
        raise ApiError(
            400, f"{len(body.input)} inputs; this server supports at most {limit} at once", "invalid_value", "input"
        )
    executor = await service.models.executor(body.model)
    call = Call(exchange.request_id, exchange.priority(None), exchange.deadline, exchange.passed_on, exchange.client)
    answer = await service.drain.run(executor.embed(body, call), request.receive, exchange.deadline)
    service.metrics.count(body.model, answer.usage.prompt_tokens, 0, exchange)
    return _answer(answer)


def _answer(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")
