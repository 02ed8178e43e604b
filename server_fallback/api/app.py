"""The app: the HTTP APIs of OpenAI, Ollama and others over the executors of a `Models`. A request passes CORS, the
gate, a route that checks its key, and the handler.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException

from nearfar.compiler.runtime.errors import NearfarError

from ..executors.executor import Models
from ..kserve.errors import kserve_error
from ..kserve.generate import generate_router
from ..kserve.http_routes import kserve_health_router, kserve_router, repository_router
from ..schema.about import QUEUE_HEADER
from ..speech.speaker import Speaker, open_speaker
from .answer_record import ROUTE_HEADER
from .config import ApiConfig
from .document import finished
from .drain import Drain
from .errors import ApiError, api_error, openai_error
from .exchange import exchange_of
from .gate import Gate
from .generation import CHAT, COMPLETION, Kind, generation_router
from .health import health_router
from .kept_answers import KeptAnswers, KeptElsewhere
from .lenient import IGNORED_HEADER
from .limiter import Limiter, Limits, OwnLimits
from .llama_cpp import CONTINUE, INFILL, llama_cpp_router
from .log import log_failure
from .messages import MESSAGES, messages_router
from .metrics import Metrics
from .model_routes import about_router, admin_router, models_router
from .ollama import ollama_error, ollama_router
from .ollama_models import ollama_models_router, ollama_store_router
from .pages import pages_router
from .prefill import prefill_router
from .queue_waits import QueueWaits
from .responses import responses_router
from .service import Service, limits_of
from .sleep import sleep_router
from .slots import slot_files_router, slots_router
from .speech import speech_router
from .stored_responses import OwnResponses, StoredResponses
from .texts import decide_router, embeddings_router, ranking_router, tokenize_router
from .tgi import TGI, info_router, tgi_error
from .traces import Traces
from .transcriptions import transcriptions_router
from .verify import verify_router

# The forms in which models write answers. Each is a file.
KINDS: tuple[Kind[Any, Any, Any], ...] = (CHAT, COMPLETION, MESSAGES, CONTINUE, INFILL, *TGI)
ERROR_FORMS = (
    *((kind.path, kind.write_error) for kind in KINDS),
    # Cohere's addresses among those of the Open Inference Protocol.
    ("/v2/embed", openai_error),
    ("/v2/rerank", openai_error),
    ("/v2", kserve_error),
    ("/api", ollama_error),
    ("/info", tgi_error),
)
EXPOSED_HEADERS = (
    "X-Request-Id",
    "request-id",
    "Retry-After",
    ROUTE_HEADER,
    QUEUE_HEADER,
    IGNORED_HEADER,
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
)


def create_app(
    models: Models,
    config: ApiConfig,
    traces: Traces | None = None,
    *,
    routed: bool = False,
    limits: Limits | None = None,
    elsewhere: KeptElsewhere | None = None,
    responses: StoredResponses | None = None,
    on_close: Callable[[], Awaitable[None]] | None = None,
    speaker: Speaker | None = None,
) -> FastAPI:
    """An ASGI app. When its lifespan ends, requests drain, then ``models`` are closed. Its routes share
    ``app.state.service``.

    ``routed``: each model is a pair of a near and a far side, and requests may restrict which side answers. ``limits``
    None: those of ``config``, for this process, whose own stored ``responses`` are used if that is None. ``elsewhere``
    is that of `KeptAnswers`. ``on_close`` is awaited after the drain. ``speaker`` None: that of ``config``, if it names
    one. Raises the errors of `open_speaker`.
    """
    if limits is None:
        limits = OwnLimits(Limiter(*limits_of(config)))
    if speaker is None and config.speaker is not None:
        speaker = open_speaker(config.speaker, config.speaker_api_key_env, os.environ, config.tls_ca)
    kept = KeptAnswers(config.keep_seconds, elsewhere=elsewhere)
    if responses is None:
        responses = OwnResponses(config.response_memory_bytes)
    drain = Drain(lambda: limits.running > 0, kept.close)
    metrics, waits = Metrics(models), QueueWaits()
    service = Service(models, config, limits, metrics, waits, drain, traces, kept, responses, ERROR_FORMS, speaker)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:  # noqa: ARG001
        yield
        await service.drain.finish(service.config.drain_seconds)
        if on_close is not None:
            await on_close()
        if speaker is not None:
            await speaker.close()
        await models.close(0.0)
        if traces is not None:
            await asyncio.to_thread(traces.close)

    # The pages that show the OpenAPI document load scripts from another server.
    app = FastAPI(
        title="nearfar",
        version=version("nearfar"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    for error in (ApiError, NearfarError, HTTPException):
        app.add_exception_handler(error, _answer_error)
    # A fixed path such as /v1/models/load must come before a pattern that matches it too.
    app.include_router(generation_router(KINDS, service, routed=routed))
    app.include_router(responses_router(service, routed=routed))
    app.include_router(embeddings_router(service, routed=routed))
    app.include_router(decide_router(service, routed=routed))
    for router in (
        ranking_router,
        generate_router,
        repository_router,
        kserve_router,
        kserve_health_router,
        transcriptions_router,
        speech_router,
        tokenize_router,
        messages_router,
        llama_cpp_router,
        info_router,
        about_router,
        verify_router,
        pages_router,
        prefill_router,
        admin_router,
        sleep_router,
        slots_router,
        slot_files_router,
        models_router,
        health_router,
        # A pair of sides can begin an answer again, which lines cannot say.
        *(() if routed else (ollama_router, ollama_models_router, ollama_store_router)),
    ):
        app.include_router(router(service))
    app.add_middleware(Gate, service=service)
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=("GET", "POST", "HEAD", "DELETE"),
            # OpenAI's client sends a dozen headers of its own.
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
        )
    document = app.openapi
    app.openapi = lambda: finished(document())  # type: ignore[method-assign]
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    reported, exchange = api_error(error), exchange_of(request)
    log_failure(exchange, error, reported)
    return reported.response(exchange.write_error)
