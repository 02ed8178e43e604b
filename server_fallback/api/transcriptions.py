"""/v1/audio/transcriptions and /v1/audio/translations: a form with a file of sound, and its transcript as JSON, text,
subtitles, or events of a stream.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from nearfar.compiler.runtime.audio.formats import verbose_json, write_transcript
from nearfar.compiler.runtime.audio.transcribe import Transcript
from nearfar.compiler.runtime.errors import Unavailable

from ..executors.executor import Call, Recording
from ..executors.hearing_transcriber import transcriber_on
from ..schema.chat import ChatCompletionChunk
from ..schema.transcription import (
    FORM,
    AudioUsage,
    TranscriptionRequest,
    TranscriptionResponse,
    TranscriptTextDelta,
    TranscriptTextDone,
)
from ..text.output import Output
from .answer_record import AnswerRecord
from .drain import SHUTTING_DOWN
from .errors import ApiError
from .exchange import Exchange, exchange_of
from .form_body import Form, boundary_of, parse_form
from .json_body import printable, read_body
from .lenient import IGNORED_HEADER, ignored_header, without_unknown
from .route import WITH_BODY, keyed_router, with_events
from .service import Service
from .sse import EventForm, EventStream, data_event
from .validation import validation_error

ROUTE: dict[str, Any] = {"response_model": TranscriptionResponse, "responses": WITH_BODY, "openapi_extra": FORM}
STREAMED = with_events("As JSON: transcript.text.delta for each window, then transcript.text.done")
# `TranscriptTextDone` is the last event.
EVENTS = EventForm(done=b"")
MEDIA_TYPES = {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}


def transcriptions_router(service: Service) -> APIRouter:
    router = keyed_router()

    @router.post("/v1/audio/transcriptions", **{**ROUTE, "responses": WITH_BODY | STREAMED})
    async def transcriptions(request: Request) -> Response:
        return await _transcribe(service, request, translate=False)

    @router.post("/v1/audio/translations", **ROUTE)
    async def translations(request: Request) -> Response:
        return await _transcribe(service, request, translate=True)

    return router


async def _transcribe(service: Service, request: Request, *, translate: bool) -> Response:
    exchange = exchange_of(request)
    form = await _read_form(service, request, exchange)
    values = values_of(form)
    if service.config.lenient and (ignored := without_unknown(TranscriptionRequest, values)):
        exchange.answer_headers[IGNORED_HEADER] = ignored_header(ignored)
    body = read_request(values)
    exchange.log.update(model=printable(body.model), bytes=len(form.file), stream=body.stream)
    if body.stream:
        check_stream(body, translate=translate)
    transcriber = transcriber_on(await service.executor(body.model, exchange), service.hearing)
    if transcriber is None:
        message = "this model neither transcribes sound nor hears; use one that does, such as Whisper"
        raise ApiError(400, message, "invalid_value", "model")
    assert exchange.admission is not None
    capacity = service.models.answers_at_once(body.model) or service.config.max_concurrent_requests
    await exchange.admission.answers(1, capacity, "file")
    call = Call(exchange.request_id, exchange.priority(None), exchange.deadline, exchange.passed_on, exchange.client)
    transcribe = partial(transcriber.transcribe, Recording(form.file, form.file_name, translate), body, call)
    if body.stream:
        record = AnswerRecord(service.metrics, body.model, exchange)

        async def answering(output: Output[ChatCompletionChunk]) -> None:
            transcript = await _send_texts(transcribe, output)
            _count(service, body, exchange, transcript)
            done = TranscriptTextDone(text=transcript.text, usage=_usage(transcript))
            output.block(data_event(done.model_dump_json().encode()), (), {0: "stop"})

        return EventStream(answering, lambda _: None, record, exchange, service.drain, lambda: None, EVENTS)
    transcript = await service.drain.run(transcribe(), request.receive, exchange.deadline)
    _count(service, body, exchange, transcript)
    return _answer(transcript, body)


async def _send_texts(
    transcribe: Callable[..., Coroutine[Any, Any, Transcript]], output: Output[ChatCompletionChunk]
) -> Transcript:
    """Send the text of each window as an event. Cancelling this ends the transcript."""
    texts = asyncio.Queue[str | None]()
    work = asyncio.create_task(transcribe(heard=texts.put_nowait))
    work.add_done_callback(lambda _: texts.put_nowait(None))
    said, sent = "", 0
    try:
        while (text := await texts.get()) is not None:
            said += text
            # Spaces at its end are sent with what follows, so that the events have the text of the whole transcript.
            whole = said.strip()
            if len(whole) > sent:
                event = TranscriptTextDelta(delta=whole[sent:])
                output.block(data_event(event.model_dump_json().encode()), (0,))
                sent = len(whole)
                await output.room()
        return await work
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def _count(service: Service, body: TranscriptionRequest, exchange: Exchange, transcript: Transcript) -> None:
    written = sum(len(segment.tokens) for segment in transcript.segments)
    service.metrics.count(body.model, 0, written, exchange)
    exchange.log["sound_seconds"] = round(transcript.duration, 2)


def check_stream(body: TranscriptionRequest, *, translate: bool) -> None:
    """Raises ApiError (400) for what is not defined for streams."""
    if translate:
        refused = "stream", "translations are not streamed; leave 'stream' out"
    elif body.response_format not in ("json", "text"):
        name = body.response_format
        refused = "response_format", f"{name!r} is not streamed; use 'json' or 'text', or leave 'stream' out"
    elif body.timestamp_granularities is not None:
        refused = "timestamp_granularities", "the events of a stream have no times; leave this or 'stream' out"
    else:
        return
    param, message = refused
    raise ApiError(400, message, "invalid_value", param)


async def _read_form(service: Service, request: Request, exchange: Exchange) -> Form:
    if service.drain.started:
        raise Unavailable(SHUTTING_DOWN)
    boundary = boundary_of(request.headers.get("content-type", ""))
    config, admission = service.config, exchange.admission
    hold = None if admission is None else admission.body
    data = await read_body(request, config.max_audio_bytes, config.body_timeout_seconds, hold)
    return await service.parsed(partial(parse_form, boundary=boundary), data, exchange.client)


def values_of(form: Form) -> dict[str, Any]:
    """The fields of a form, which are all texts, as JSON has them. What is no number stays a text."""
    values: dict[str, Any] = dict(form.texts)
    with suppress(ValueError, TypeError):
        values["temperature"] = float(values.get("temperature", 0))
    stream = values.get("stream")
    values["stream"] = {None: False, "true": True, "false": False}.get(stream, stream)
    return values


def read_request(values: dict[str, Any]) -> TranscriptionRequest:
    """Raises ApiError (400)."""
    try:
        return TranscriptionRequest.model_validate(values)
    except ValidationError as error:
        errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        raise validation_error(errors, values) from None


def _usage(transcript: Transcript) -> AudioUsage:
    return AudioUsage(seconds=math.ceil(transcript.duration))


def _answer(transcript: Transcript, body: TranscriptionRequest) -> Response:
    if body.response_format in MEDIA_TYPES:
        text = write_transcript(transcript, body.response_format)
        return Response(text, media_type=MEDIA_TYPES[body.response_format])
    fields = (
        verbose_json(transcript, words=body.words)
        if body.response_format == "verbose_json"
        else {"text": transcript.text}
    )
    answer = TranscriptionResponse.model_validate({**fields, "usage": _usage(transcript)})
    return Response(answer.model_dump_json(), media_type="application/json")
