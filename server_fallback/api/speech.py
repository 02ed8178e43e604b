"""/v1/audio/speech: a text, and its sound as the server's speaker makes it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..executors.executor import Call
from ..schema.speech import SOUND, SpeechRequest
from .byte_stream import ByteStream, Parts
from .errors import ApiError
from .exchange import exchange_of
from .json_body import printable
from .route import WITH_BODY, keyed_router
from .service import Service


def speech_router(service: Service) -> APIRouter:
    router = keyed_router()

    @router.post("/v1/audio/speech", responses=WITH_BODY | SOUND, response_class=Response)
    async def speech(body: SpeechRequest, request: Request) -> Response:
        exchange, speaker = exchange_of(request), service.speaker
        exchange.log.update(model=printable(body.model), characters=len(body.input))
        if speaker is None:
            raise ApiError(
                404,
                "this server does not speak; start it with --speaker espeak, or with the URL of a server that does",
                "speech_unavailable",
            )
        assert exchange.admission is not None
        await exchange.admission.answers(1, service.config.max_concurrent_requests, "input")
        call = Call(
            exchange.request_id, exchange.priority(None), exchange.deadline, exchange.passed_on, exchange.client
        )

        async def begin() -> Parts:
            spoken = await speaker.speak(body, call)
            return Parts(spoken.parts, spoken.media_type)

        return ByteStream(begin, exchange, service.drain)

    return router
