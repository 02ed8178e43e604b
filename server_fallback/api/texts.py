"""/v1/embeddings, /tokenize and /detokenize: one question, one whole answer."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ..executors.executor import Call
from ..schema.embeddings import EmbeddingRequest, EmbeddingResponse
from ..schema.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from .errors import ApiError
from .exchange import exchange_of
from .json_body import printable
from .route import WITH_BODY, keyed_router
from .service import Service


def texts_router(service: Service) -> APIRouter:
    router = keyed_router()

    @router.post("/v1/embeddings", response_model=EmbeddingResponse, responses=WITH_BODY)
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        exchange = exchange_of(request)
        exchange.log["model"] = printable(body.model)
        limit = service.config.max_inputs
        if isinstance(body.input, list) and body.input and not isinstance(body.input[0], int) and len(body.input) > limit:
            raise ApiError(400, f"{len(body.input)} inputs; this server takes {limit} at once", "invalid_value", "input")
        executor = await service.models.executor(body.model)
        call = Call(exchange.request_id, exchange.priority(None), exchange.deadline, exchange.passed_on)
        answer = await service.drain.run(executor.embed(body, call), request.receive, exchange.deadline)
        service.metrics.count(body.model, answer.usage.prompt_tokens, 0, exchange)
        return _answer(answer)

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


def _answer(answer: EmbeddingResponse | TokenizeResponse | DetokenizeResponse) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")
