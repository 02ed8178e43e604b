"""The routes of generation.py and embeddings.py where a model is a pair of sides: requests may say which of them may answer."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ..schema.routed import RoutedChatRequest, RoutedCompletionRequest, RoutedEmbeddingRequest
from .embeddings import EMBEDDING, answer_embedding
from .generation import CHAT, COMPLETION, answer_chat, answer_completion
from .route import keyed_router
from .service import Service


def routed_router(service: Service) -> APIRouter:
    router = keyed_router()

    @router.post("/v1/chat/completions", **CHAT)
    async def chat_completions(body: RoutedChatRequest, request: Request) -> Response:
        return await answer_chat(service, body, request)

    @router.post("/v1/completions", **COMPLETION)
    async def completions(body: RoutedCompletionRequest, request: Request) -> Response:
        return await answer_completion(service, body, request)

    @router.post("/v1/embeddings", **EMBEDDING)
    async def embeddings(body: RoutedEmbeddingRequest, request: Request) -> Response:
        return await answer_embedding(service, body, request)

    return router
