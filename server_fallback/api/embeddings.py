"""/v1/embeddings: one question, one whole answer."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from ..executors.executor import Call
from ..schema.embeddings import EmbeddingRequest, EmbeddingResponse
from .errors import ApiError
from .exchange import exchange_of
from .json_body import printable
from .route import WITH_BODY, keyed_router
from .service import Service

EMBEDDING: dict[str, Any] = {"response_model": EmbeddingResponse, "responses": WITH_BODY}


def embeddings_router(service: Service) -> APIRouter:
    router = keyed_router()

    @router.post("/v1/embeddings", **EMBEDDING)
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        return await answer_embedding(service, body, request)

    return router


async def answer_embedding(service: Service, body: EmbeddingRequest, request: Request) -> Response:
    exchange = exchange_of(request)
    exchange.log["model"] = printable(body.model)
    limit = service.config.max_inputs
    if isinstance(body.input, list) and body.input and not isinstance(body.input[0], int) and len(body.input) > limit:
        raise ApiError(400, f"{len(body.input)} inputs; this server takes {limit} at once", "invalid_value", "input")
    executor = await service.models.executor(body.model)
    call = Call(exchange.request_id, exchange.priority(None), exchange.deadline, exchange.passed_on)
    answer = await service.drain.run(executor.embed(body, call), request.receive, exchange.deadline)
    service.metrics.count(body.model, answer.usage.prompt_tokens, 0, exchange)
    return Response(answer.model_dump_json(), media_type="application/json")
