"""/v1/chat/completions and /v1/completions: pass a request to its model's executor, and return the chunks as events or
as one answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response

from ..executors.executor import Call, EventBlock, Executor, Relays
from ..schema.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionRequest
from ..schema.common import GenerationRequest
from ..schema.completions import Completion, CompletionChunk, CompletionRequest
from ..schema.fold import fold_chat, fold_completion
from ..schema.functions import with_function_calls
from ..schema.pipeline import StepTime
from ..schema.routed import RoutedChatRequest, RoutedCompletionRequest
from ..text.writer import Sink
from .answer_record import AnswerRecord
from .encode import chat_chunk_json, chat_json, completion_chunk_json, completion_json
from .errors import ApiError
from .exchange import Exchange, exchange_of
from .json_body import printable
from .lenient import IGNORED_HEADER
from .metrics import has_content
from .route import WITH_BODY, keyed_router
from .service import Service
from .sse import EventStream
from .stream_sink import StreamSink
from .validation import check_calls

Chunk = TypeVar("Chunk", ChatCompletionChunk, CompletionChunk)
JSON = "application/json"
EVENT = {
    "type": "object",
    "properties": {"data": {"type": "string", "description": "A chunk as JSON, or [DONE]"}},
    "required": ["data"],
}
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": EVENT}}}}


CHAT: dict[str, Any] = {"response_model": ChatCompletion, "responses": {**WITH_BODY, **STREAMED}}
COMPLETION: dict[str, Any] = {"response_model": Completion, "responses": {**WITH_BODY, **STREAMED}}


def generation_router(service: Service) -> APIRouter:
    router = keyed_router()

    @router.post("/v1/chat/completions", **CHAT)
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        return await _answer_chat(service, body, request)

    @router.post("/v1/completions", **COMPLETION)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        return await _answer_completion(service, body, request)

    return router


def routed_generation_router(service: Service) -> APIRouter:
    """The same routes if a model is a pair of sides: requests may restrict which side answers."""
    router = keyed_router()

    @router.post("/v1/chat/completions", **CHAT)
    async def chat_completions(body: RoutedChatRequest, request: Request) -> Response:
        return await _answer_chat(service, body, request)

    @router.post("/v1/completions", **COMPLETION)
    async def completions(body: RoutedCompletionRequest, request: Request) -> Response:
        return await _answer_completion(service, body, request)

    return router


async def _answer_chat(service: Service, body: ChatCompletionRequest, request: Request) -> Response:
    exchange = exchange_of(request)
    check_calls(body.messages)
    executor = await _begin(service, body, 1, exchange)
    if body.stream and isinstance(executor, Relays) and body.functions is None:
        encode = partial(_event, chat_chunk_json, body)
        relay = partial(executor.relay_chat, body, _call(service, body, exchange), encode)
        return _relayed(service, executor, relay, body, exchange)
    chunks = service.metrics.measured(executor.chat(body, _call(service, body, exchange)), body.model, exchange)
    if body.functions is not None:
        chunks = with_function_calls(chunks)
    report_queue = _queue_reporter(service, executor, body.model, exchange)
    if body.stream:
        return EventStream(_events(chunks, body, chat_chunk_json), exchange, service.drain, report_queue)
    answer = await service.drain.run(fold_chat(chunks), request.receive, exchange.deadline)
    report_queue()
    return Response(chat_json(answer), media_type=JSON)


async def _answer_completion(service: Service, body: CompletionRequest, request: Request) -> Response:
    exchange = exchange_of(request)
    executor = await _begin(service, body, _num_prompts(body.prompt), exchange)
    if body.stream and isinstance(executor, Relays):
        encode = partial(_event, completion_chunk_json, body)
        relay = partial(executor.relay_completion, body, _call(service, body, exchange), encode)
        return _relayed(service, executor, relay, body, exchange)
    chunks = service.metrics.measured(executor.complete(body, _call(service, body, exchange)), body.model, exchange)
    report_queue = _queue_reporter(service, executor, body.model, exchange)
    if body.stream:
        return EventStream(_events(chunks, body, completion_chunk_json), exchange, service.drain, report_queue)
    answer = await service.drain.run(fold_completion(chunks), request.receive, exchange.deadline)
    report_queue()
    return Response(completion_json(answer), media_type=JSON)


async def _begin(service: Service, body: GenerationRequest, num_prompts: int, exchange: Exchange) -> Executor:
    """Check the configured limits, find the model, and count the answers. Raises ApiError, UnknownModel."""
    exchange.log.update(model=printable(body.model), stream=bool(body.stream))
    config = service.config
    if body.stream_options is not None and not body.stream:
        raise ApiError(
            400,
            "'stream_options' applies to streamed answers only; set 'stream' to true",
            "invalid_value",
            "stream_options",
        )
    choices = (body.n or 1) * num_prompts
    if choices > config.max_choices:
        param = "n" if num_prompts == 1 else "prompt"
        message = (
            f"{choices} answers requested (n times the number of prompts); this server supports at most "
            f"{config.max_choices}"
        )
        raise ApiError(400, message, "invalid_value", param)
    if isinstance(body.stop, list) and len(body.stop) > config.max_stops:
        message = f"{len(body.stop)} stop strings; this server supports at most {config.max_stops}"
        raise ApiError(400, message, "invalid_value", "stop")
    executor = await service.models.executor(body.model)
    assert exchange.admission is not None
    capacity = service.models.answers_at_once(body.model) or config.max_concurrent_requests
    await exchange.admission.answers(choices, capacity, "n" if num_prompts == 1 else "prompt")
    exchange.answer_headers.update(exchange.admission.headers)
    return executor


def _queue_reporter(service: Service, executor: Executor, model: str, exchange: Exchange) -> Callable[[], None]:
    """Return a function to call just before the answer's headers are sent, so that they report the queue at that
    time.
    """
    return lambda: service.report_queue({model: executor.state()}, exchange)


def _call(service: Service, body: GenerationRequest, exchange: Exchange) -> Call:
    observe_metric = service.metrics.queue.labels(body.model).observe

    def observe_queue(seconds: float) -> None:
        observe_metric(seconds)
        service.queue_waits.observe(body.model, seconds)

    def ignore_param(name: str) -> None:
        headers = exchange.answer_headers
        headers[IGNORED_HEADER] = ", ".join([*([headers[IGNORED_HEADER]] if IGNORED_HEADER in headers else []), name])

    def observe_step(step: StepTime, began: float) -> None:
        exchange.steps.append((step, began))
        service.metrics.steps.labels(body.model, step.name).observe(step.ms / 1e3)

    return Call(
        request_id=exchange.request_id,
        priority=exchange.priority(body.priority),
        deadline=exchange.deadline,
        headers=exchange.passed_on,
        client=exchange.client,
        observe_queue=observe_queue,
        observe_step=observe_step,
        ignore_param=ignore_param if service.config.lenient else None,
    )


def _num_prompts(prompt: str | list[int] | list[str] | list[list[int]]) -> int:
    return 1 if isinstance(prompt, str) or not prompt or isinstance(prompt[0], int) else len(prompt)


async def _events(
    chunks: AsyncGenerator[Chunk, None],
    body: GenerationRequest,
    encode: Callable[[Chunk, bool], bytes | None],
) -> AsyncGenerator[bytes, None]:
    """Chunks as events. Chunks without content wait for the first one with content, so that a full queue can still be
    answered with 429.
    """
    held: list[bytes] = []
    silent = True
    async with aclosing(chunks):
        async for chunk in chunks:
            event = _event(encode, body, chunk)
            if event is not None:
                held.append(event)
            if silent and any(has_content(choice) for choice in chunk.choices):
                silent = False
            if not silent:
                for waiting in held:
                    yield waiting
                held.clear()


def _relayed(
    service: Service,
    executor: Executor,
    relay: Callable[[Sink[EventBlock]], AsyncGenerator[EventBlock, None]],
    body: GenerationRequest,
    exchange: Exchange,
) -> EventStream:
    record = AnswerRecord(service.metrics, body.model, exchange)
    sink = StreamSink(record)
    events = _block_events(service.metrics.measured_blocks(relay(sink), record))
    report_queue = _queue_reporter(service, executor, body.model, exchange)
    return EventStream(events, exchange, service.drain, report_queue, sink)


async def _block_events(blocks: AsyncGenerator[EventBlock, None]) -> AsyncGenerator[bytes, None]:
    """The events of blocks. As with chunks, the first ones wait for content."""
    held = b""
    silent = True
    async with aclosing(blocks):
        async for block in blocks:
            silent = silent and not (block.texts or block.ends)
            if silent:
                held += block.sent
            elif ready := held + block.sent:
                yield ready
                held = b""


def _event(encode: Callable[[Chunk, bool], bytes | None], body: GenerationRequest, chunk: Chunk) -> bytes | None:
    """The chunk as an event; None if there is nothing to send."""
    options = body.stream_options
    written = encode(chunk, options is not None and options.include_usage)
    return None if written is None else b"data: " + written + b"\n\n"
