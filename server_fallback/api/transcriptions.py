"""/v1/audio/transcriptions and /v1/audio/translations: a form with a file of sound, and its transcript as JSON, text or
subtitles.
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from nearfar.compiler.runtime.audio.formats import verbose_json, write_transcript
from nearfar.compiler.runtime.audio.transcribe import Transcript
from nearfar.compiler.runtime.errors import RequestError, Unavailable

from ..executors.executor import Call, Transcribes
from ..schema.transcription import FORM, AudioUsage, TranscriptionRequest, TranscriptionResponse
from .drain import SHUTTING_DOWN
from .errors import ApiError
from .exchange import Exchange, exchange_of
from .form_body import Form, boundary_of, parse_form
from .json_body import printable, read_body
from .lenient import IGNORED_HEADER, ignored_header, without_unknown
from .route import WITH_BODY, keyed_router
from .service import Service
from .validation import validation_error

ROUTE: dict[str, Any] = {"response_model": TranscriptionResponse, "responses": WITH_BODY, "openapi_extra": FORM}
MEDIA_TYPES = {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}


def transcriptions_router(service: Service) -> APIRouter:
    router = keyed_router()

    @router.post("/v1/audio/transcriptions", **ROUTE)
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
    exchange.log.update(model=printable(body.model), bytes=len(form.file))
    executor = await service.models.executor(body.model)
    if not isinstance(executor, Transcribes):
        raise ApiError(400, "this model does not transcribe sound; use a Whisper", "invalid_value", "model")
    assert exchange.admission is not None
    capacity = service.models.answers_at_once(body.model) or service.config.max_concurrent_requests
    await exchange.admission.answers(1, capacity, "file")
    call = Call(exchange.request_id, exchange.priority(None), exchange.deadline, exchange.passed_on, exchange.client)
    work = executor.transcribe(form.file, form.file_name, body, call, translate=translate)
    try:
        transcript = await service.drain.run(work, request.receive, exchange.deadline)
    except RequestError as error:
        raise ApiError(400, error.message, "invalid_value", _param_of(error)) from error
    written = sum(len(segment.tokens) for segment in transcript.segments)
    service.metrics.count(body.model, 0, written, exchange)
    exchange.log["sound_seconds"] = round(transcript.duration, 2)
    return _answer(transcript, body)


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


def _param_of(error: RequestError) -> str | None:
    param = error.details.get("param")
    return param if isinstance(param, str) else None


def _answer(transcript: Transcript, body: TranscriptionRequest) -> Response:
    if body.response_format in MEDIA_TYPES:
        text = write_transcript(transcript, body.response_format)
        return Response(text, media_type=MEDIA_TYPES[body.response_format])
    usage = AudioUsage(seconds=math.ceil(transcript.duration))
    fields = (
        verbose_json(transcript, words=body.words)
        if body.response_format == "verbose_json"
        else {"text": transcript.text}
    )
    answer = TranscriptionResponse.model_validate({**fields, "usage": usage})
    return Response(answer.model_dump_json(), media_type="application/json")
