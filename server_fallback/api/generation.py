"""Answers of models: pass a request to its model's executor, and return the chunks as events or as one answer.

Each is a `Kind`: how its body is read, its chunks are written and added up. Another form of the API is another `Kind`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from starlette.datastructures import Headers

from nearfar.compiler.runtime.errors import RequestError

from ..executors.executor import Call, Executor
from ..executors.recordings import reporting
from ..schema.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionRequest
from ..schema.common import ErrorResponse, GenerationRequest, texts_of
from ..schema.completions import AnswerRequest, Completion, CompletionChunk, CompletionRequest
from ..schema.fold import ChatFold, CompletionFold
from ..schema.functions import with_function_calls
from ..schema.pipeline import StepTime
from ..schema.routed import RoutedChatRequest, RoutedCompletionRequest
from ..text.output import Answering, Changed, Chunks, ChunkT, Encode, Fold, Output
from .answer_record import AnswerRecord
from .document import in_json
from .errors import ApiError, WriteError, openai_error
from .exchange import Exchange, exchange_of
from .json_body import printable
from .kept_answers import KEY, KEY_HEADER
from .lenient import IGNORED_HEADER
from .only_model import only_model
from .recordings import heard
from .route import EVERYWHERE, WITH_BODY, Responses, keyed_router, post, with_events
from .service import Service
from .sse import OPENAI_EVENTS, EventForm, EventStream, data_event
from .validation import check_calls

# Sends the answer of an executor to an output.
Respond = Callable[[Executor, AnswerRequest, Call, Output[Any]], Coroutine[Any, Any, None]]
BodyT = TypeVar("BodyT", bound=BaseModel)
AnswerT = TypeVar("AnswerT", bound=BaseModel)
JSON = "application/json"
STREAMED = with_events("A chunk as JSON, or [DONE]")


async def answer_once(executor: Executor, request: AnswerRequest, call: Call, output: Output[Any]) -> None:
    await executor.answer(request, call, output)


@dataclass(frozen=True, slots=True)
class Kind(Generic[BodyT, ChunkT, AnswerT]):
    """A form of answers. ``body`` is the class of requests, and ``routed`` that for a pair of sides, which may restrict
    which side answers. ``read`` returns what the executor answers, and ``encode`` a function that writes its chunks as
    the events of one answer; they are ``alike`` if those of two texts differ only in the text. ``fold`` adds up the
    chunks to the whole answer of class ``answer``, which ``write`` writes. ``events`` are the others of a stream.
    ``respond`` has an executor answer; it may do more before the end of the answer. ``check`` raises ApiError for
    headers that the form does not have, unless the server is lenient, and ``renamed`` gives an executor's error the
    name that its parameter has in the request. ``responses`` are for the document. ``names_model``: without a name,
    ``read`` has "", and the only model answers otherwise.
    """

    path: str
    body: type[BodyT]
    routed: type[BodyT]
    answer: type[AnswerT]
    read: Callable[[BodyT], AnswerRequest]
    encode: Callable[[BodyT], Encode[ChunkT]]
    fold: Callable[[BodyT], Fold[ChunkT, AnswerT]]
    write: Callable[[AnswerT], bytes]
    events: EventForm = OPENAI_EVENTS
    write_error: WriteError = openai_error
    alike: bool = True
    respond: Respond = answer_once
    check: Callable[[Headers, Exchange, bool], None] = lambda headers, exchange, lenient: None  # noqa: ARG005
    renamed: Callable[[BodyT, RequestError], RequestError] = lambda body, error: error  # noqa: ARG005
    responses: Responses = field(default_factory=lambda: WITH_BODY)
    names_model: bool = True

    def add_route(self, router: APIRouter, service: Service, *, routed: bool) -> None:
        @post(router, self.path, self.routed if routed else self.body, self.answer, self.responses | STREAMED)
        async def answer(body: BodyT, request: Request) -> Response:
            return await answered(self, service, body, request)


NAMES_ANSWER = {
    "name": KEY_HEADER,
    "in": "header",
    "required": True,
    "schema": {"type": "string", "pattern": f"^{KEY.pattern}$"},
}
CANCELLING: Responses = {
    **EVERYWHERE,
    204: {"description": "The answer has ended."},
    400: {**in_json(ErrorResponse), "description": "The header Idempotency-Key is missing."},
    404: {**in_json(ErrorResponse), "description": "No answer is kept under this Idempotency-Key."},
}


def generation_router(kinds: Sequence[Kind[Any, Any, Any]], service: Service, *, routed: bool = False) -> APIRouter:
    router = keyed_router()
    for kind in kinds:
        kind.add_route(router, service, routed=routed)

    @router.post("/v1/cancel", status_code=204, responses=CANCELLING, openapi_extra={"parameters": [NAMES_ANSWER]})
    async def cancel(request: Request) -> Response:
        """End the streamed answer whose request had the same Idempotency-Key."""
        if not await service.kept.cancel(request.headers, exchange_of(request)):
            raise ApiError(404, "no answer is kept under this Idempotency-Key", "answer_not_kept")
        return Response(status_code=204)

    return router


async def answered(kind: Kind[BodyT, ChunkT, AnswerT], service: Service, body: BodyT, request: Request) -> Response:
    exchange = exchange_of(request)
    kind.check(request.headers, exchange, service.config.lenient)
    asked = kind.read(body)
    if not asked.model and not kind.names_model:
        asked = asked.model_copy(update={"model": await only_model(service)})
    rest = await service.kept.find(request.headers, exchange, body) if asked.stream else None
    if rest is not None:
        return rest
    opened = await open_answer(kind, service, body, asked, request)
    if asked.stream:
        return await service.kept.keep(request.headers, exchange, body, opened.stream(), kind.events)
    answer = await service.drain.run(opened.folded(), request.receive, exchange.deadline)
    opened.report_queue()
    return Response(kind.write(answer), media_type=JSON)


@dataclass(frozen=True, slots=True)
class OpenAnswer(Generic[BodyT, ChunkT, AnswerT]):
    """An answer that can begin: its request has passed the limits, and counts. ``report_queue`` is called just before
    the answer's headers are sent, so that they report the queue at that time.
    """

    kind: Kind[BodyT, ChunkT, AnswerT]
    body: BodyT
    service: Service
    exchange: Exchange
    record: AnswerRecord
    answering: Answering[ChunkT]
    report_queue: Callable[[], None]

    def stream(self, answering: Answering[ChunkT] | None = None, *, at_once: bool = False) -> EventStream[ChunkT]:
        """``answering``: around that of the answer. For ``at_once`` see `EventStream`."""
        kind = self.kind
        return EventStream(
            answering or self.answering,
            kind.encode(self.body),
            self.record,
            self.exchange,
            self.service.drain,
            self.report_queue,
            kind.events,
            alike=kind.alike,
            at_once=at_once,
        )

    async def folded(self) -> AnswerT:
        fold, record = self.kind.fold(self.body), self.record

        def add(chunk: ChunkT) -> None:
            record.chunk(chunk)
            fold.add(chunk)

        with record:
            await self.answering(Chunks(add))
            return fold.answer()


async def open_answer(
    kind: Kind[BodyT, ChunkT, AnswerT], service: Service, body: BodyT, asked: AnswerRequest, request: Request
) -> OpenAnswer[BodyT, ChunkT, AnswerT]:
    """``asked`` is what the executor answers. Raises the errors of a request that is refused before its answer
    begins.
    """
    exchange = exchange_of(request)
    executor = await _begin(service, asked, exchange)
    record = AnswerRecord(service.metrics, asked.model, exchange)
    received = await request.json() if asked.receipt else None

    async def answering(output: Output[Any]) -> None:
        if isinstance(asked, ChatCompletionRequest) and asked.functions is not None:
            output = Changed(output, with_function_calls)
        call, request = _call(service, asked, exchange, received, record), asked
        try:
            if isinstance(request, ChatCompletionRequest):
                request, transcripts = await heard(service, executor, request, call)
                output = reporting(output, transcripts) if transcripts else output
            await kind.respond(executor, request, call, output)
        except RequestError as error:
            raise kind.renamed(body, error) from error

    def report_queue() -> None:
        service.report_queue({asked.model: executor.state()}, exchange)

    return OpenAnswer(kind, body, service, exchange, record, answering, report_queue)


async def _begin(service: Service, body: AnswerRequest, exchange: Exchange) -> Executor:
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
    num_prompts = 1 if isinstance(body, ChatCompletionRequest) else len(texts_of(body.prompt))
    param, choices = "n" if num_prompts == 1 else "prompt", (body.n or 1) * num_prompts
    if choices > config.max_choices:
        message = (
            f"{choices} answers requested (n times the number of prompts); this server supports at most "
            f"{config.max_choices}"
        )
        raise ApiError(400, message, "invalid_value", param)
    if isinstance(body.stop, list) and len(body.stop) > config.max_stops:
        message = f"{len(body.stop)} stop strings; this server supports at most {config.max_stops}"
        raise ApiError(400, message, "invalid_value", "stop")
    executor = await service.executor(body.model, exchange)
    assert exchange.admission is not None
    capacity = service.models.answers_at_once(body.model) or config.max_concurrent_requests
    await exchange.admission.answers(choices, capacity, param)
    exchange.answer_headers.update(exchange.admission.headers)
    return executor


def _call(
    service: Service,
    body: GenerationRequest,
    exchange: Exchange,
    received: dict[str, Any] | None,
    record: AnswerRecord,
) -> Call:
    observe_metric = service.metrics.queue.labels(body.model).observe

    def observe_queue(seconds: float) -> None:
        observe_metric(seconds)
        service.queue_waits.observe(body.model, seconds)

    async def expect_tokens(prompt_tokens: int, most: float) -> None:
        await exchange.reserve(prompt_tokens + most)
        record.prompt_tokens = prompt_tokens

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
        expect_tokens=expect_tokens,
        observe_queue=observe_queue,
        observe_step=observe_step,
        ignore_param=ignore_param if service.config.lenient else None,
        received=received,
        confirmed=exchange.confirmed,
        prefill_from=exchange.prefill_from,
    )


# --- the two kinds ---


def data_events(body: GenerationRequest) -> Callable[[ChatCompletionChunk | CompletionChunk], bytes | None]:
    """Events without a name, each with a chunk as its data."""
    include_usage = body.stream_options is not None and body.stream_options.include_usage

    def event(chunk: ChatCompletionChunk | CompletionChunk) -> bytes | None:
        written = chunk_json(chunk, include_usage)
        return None if written is None else data_event(written)

    return event


def read_chat(body: ChatCompletionRequest) -> ChatCompletionRequest:
    check_calls(body.messages)
    return body


def answer_json(answer: ChatCompletion | Completion) -> bytes:
    return _json(answer.model_dump(mode="json"))


def chunk_json(chunk: ChatCompletionChunk | CompletionChunk, include_usage: bool) -> bytes | None:
    """None if there is nothing to send: the chunk holds only the usage, which was not requested."""
    if not chunk.choices and not include_usage and chunk.receipts is None:
        return None
    return _json(chunk.model_dump(mode="json", exclude=None if include_usage else {"usage"}))


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


CHAT: Kind[ChatCompletionRequest, ChatCompletionChunk, ChatCompletion] = Kind(
    "/v1/chat/completions",
    ChatCompletionRequest,
    RoutedChatRequest,
    ChatCompletion,
    read_chat,
    data_events,
    lambda _: ChatFold(),
    answer_json,
)
COMPLETION: Kind[CompletionRequest, CompletionChunk, Completion] = Kind(
    "/v1/completions",
    CompletionRequest,
    RoutedCompletionRequest,
    Completion,
    lambda body: body,
    data_events,
    lambda _: CompletionFold(),
    answer_json,
)
