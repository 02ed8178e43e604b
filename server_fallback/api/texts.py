"""Embeddings, reranking, scores, classes, decisions and tokens: a request about texts, and one JSON object as the
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from nearfar.compiler.runtime.errors import RequestError

from ..executors.executor import Call, Decides, Executor, Ranks
from ..schema.common import texts_of
from ..schema.decide import DecideRequest, DecideResponse
from ..schema.embed import EmbedRequest, EmbedResponse
from ..schema.embeddings import EmbeddingRequest, EmbeddingResponse
from ..schema.encoding import EncodingRequest
from ..schema.rerank import RerankRequest, RerankResponse
from ..schema.routed import RoutedDecideRequest, RoutedDecideResponse, RoutedEmbeddingRequest
from ..schema.score import ClassifyRequest, ClassifyResponse, ScoreRequest, ScoreResponse
from ..schema.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from ..text.embed_forms import as_cohere, as_openai, renamed
from .errors import ApiError
from .exchange import Exchange, exchange_of
from .json_body import printable
from .route import WITH_BODY, keyed_router, post
from .service import Service
from .validation import check_calls

EMBEDDING_LIKE_COHERE: dict[str, Any] = {"response_model": EmbedResponse, "responses": WITH_BODY}
RERANKING: dict[str, Any] = {"response_model": RerankResponse, "responses": WITH_BODY}
SCORING: dict[str, Any] = {"response_model": ScoreResponse, "responses": WITH_BODY}
RankingRequest = TypeVar("RankingRequest", bound=EncodingRequest)
RankingResponse = RerankResponse | ScoreResponse | ClassifyResponse
CLASSIFYING: dict[str, Any] = {"response_model": ClassifyResponse, "responses": WITH_BODY}


def embeddings_router(service: Service, *, routed: bool = False) -> APIRouter:
    """``routed``: a model is a pair of sides, and requests may restrict which side answers."""
    router = keyed_router()

    @post(router, "/v1/embeddings", RoutedEmbeddingRequest if routed else EmbeddingRequest, EmbeddingResponse)
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        return _answer(await embedded(service, body, request))

    @router.post("/v2/embed", **EMBEDDING_LIKE_COHERE)
    async def embed(body: EmbedRequest, request: Request) -> Response:
        try:
            answer = as_cohere(await embedded(service, as_openai(body), request, "texts"), body)
        except RequestError as error:
            raise renamed(error) from error
        return Response(answer.model_dump_json(by_alias=True), media_type="application/json")

    return router


def decide_router(service: Service, *, routed: bool = False) -> APIRouter:
    """``routed`` as for `embeddings_router`."""
    router = keyed_router()
    answer = RoutedDecideResponse if routed else DecideResponse

    @post(router, "/v1/decide", RoutedDecideRequest if routed else DecideRequest, answer)
    async def decide(body: DecideRequest, request: Request) -> Response:
        check_calls(body.messages or ())
        executor = await _begin(service, body, request, 1, "questions")
        if not isinstance(executor, Decides):
            raise ApiError(
                400, "this model answers no questions; use a model that generates text", "invalid_value", "model"
            )
        exchange = exchange_of(request)
        work = executor.decide(body, encoding_call(body, exchange))
        answer = await service.drain.run(work, request.receive, exchange.deadline)
        service.metrics.count(body.model, answer.usage.prompt_tokens, 0, exchange)
        return _answer(answer)

    return router


def tokenize_router(service: Service) -> APIRouter:
    router = keyed_router()

    @router.post("/tokenize", response_model=TokenizeResponse, responses=WITH_BODY)
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        check_calls(body.messages or ())
        exchange = exchange_of(request)
        exchange.log["model"] = printable(body.model)
        executor = await service.executor(body.model, exchange)
        return _answer(await service.drain.run(executor.tokenize(body), request.receive, exchange.deadline))

    @router.post("/detokenize", response_model=DetokenizeResponse, responses=WITH_BODY)
    async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
        exchange = exchange_of(request)
        exchange.log["model"] = printable(body.model)
        executor = await service.executor(body.model, exchange)
        return _answer(await service.drain.run(executor.detokenize(body), request.receive, exchange.deadline))

    return router


def ranking_router(service: Service) -> APIRouter:
    """Routes of rerankers and classifiers, also without /v1, as in vLLM and Jina."""
    router = keyed_router()

    async def ranked(body: RerankRequest, request: Request, *, returns_documents: bool) -> Response:
        if body.return_documents is None:
            body = body.model_copy(update={"return_documents": returns_documents})
        return await _rank(service, body, request, len(body.documents), "documents", lambda one: one.rerank)

    @router.post("/v1/rerank", **RERANKING)
    @router.post("/rerank", **RERANKING)
    async def rerank(body: RerankRequest, request: Request) -> Response:
        return await ranked(body, request, returns_documents=True)

    @router.post("/v2/rerank", **RERANKING)
    async def rerank_like_cohere(body: RerankRequest, request: Request) -> Response:
        return await ranked(body, request, returns_documents=False)

    @router.post("/v1/score", **SCORING)
    @router.post("/score", **SCORING)
    async def score(body: ScoreRequest, request: Request) -> Response:
        count = max(1 if isinstance(each, str) else len(each) for each in (body.text_1, body.text_2))
        return await _rank(service, body, request, count, "text_2", lambda one: one.score)

    @router.post("/v1/classify", **CLASSIFYING)
    @router.post("/classify", **CLASSIFYING)
    async def classify(body: ClassifyRequest, request: Request) -> Response:
        count = len(texts_of(body.input)) * max(1, len(body.labels or ()))
        return await _rank(service, body, request, count, "input", lambda one: one.classify)

    return router


async def _rank(
    service: Service,
    body: RankingRequest,
    request: Request,
    num_texts: int,
    param: str,
    method: Callable[[Ranks], Callable[[RankingRequest, Call], Coroutine[Any, Any, RankingResponse]]],
) -> Response:
    executor = await _begin(service, body, request, num_texts, param)
    if not isinstance(executor, Ranks):
        raise ApiError(400, "this model does not score texts; use a reranker or a classifier", "invalid_value", "model")
    exchange = exchange_of(request)
    work = method(executor)(body, encoding_call(body, exchange))
    answer = await service.drain.run(work, request.receive, exchange.deadline)
    service.metrics.count(body.model, answer.usage.prompt_tokens, 0, exchange)
    return _answer(answer)


async def _begin(
    service: Service, body: EncodingRequest | DecideRequest, request: Request, num_texts: int, param: str
) -> Executor:
    """Check the configured limits, find the model, and count the request as one answer of it. Raises ApiError,
    UnknownModel.
    """
    exchange = exchange_of(request)
    exchange.log.update(model=printable(body.model), texts=num_texts)
    limit = service.config.max_inputs
    if num_texts > limit:
        raise ApiError(400, f"{num_texts} texts; this server supports at most {limit} at once", "invalid_value", param)
    executor = await service.executor(body.model, exchange)
    assert exchange.admission is not None
    capacity = service.models.answers_at_once(body.model) or service.config.max_concurrent_requests
    await exchange.admission.answers(1, capacity, param)
    return executor


def encoding_call(body: EncodingRequest | DecideRequest, exchange: Exchange) -> Call:
    return Call(
        exchange.request_id,
        exchange.priority(body.priority),
        exchange.deadline,
        exchange.passed_on,
        exchange.client,
        expect_tokens=lambda prompt_tokens, most: exchange.reserve(prompt_tokens + most),
    )


async def embedded(
    service: Service, body: EmbeddingRequest, request: Request, param: str = "input"
) -> EmbeddingResponse:
    executor = await _begin(service, body, request, len(texts_of(body.input)), param)
    exchange = exchange_of(request)
    work = executor.embed(body, encoding_call(body, exchange))
    answer = await service.drain.run(work, request.receive, exchange.deadline)
    service.metrics.count(body.model, answer.usage.prompt_tokens, 0, exchange)
    return answer


def _answer(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")
