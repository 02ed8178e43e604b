"""/v1/audio/speech: a text, and its sound as the server's speaker makes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..executors.executor import Call
from ..schema.speech import SOUND, SpeechRequest
from ..speech.speaker import Speech
from .drain import ClientGone, Drain
from .errors import ApiError, api_error
from .exchange import Exchange, exchange_of
from .json_body import printable
from .log import log_failure
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
        return SoundStream(lambda: speaker.speak(body, call), exchange, service.drain)

    return router


class SoundStream(Response):
    """The status is sent with the first part, so that a failure before it is an ordinary error. After a later one, the
    connection is closed before the end of the answer.
    """

    def __init__(self, speak: Callable[[], Awaitable[Speech]], exchange: Exchange, drain: Drain) -> None:
        super().__init__()
        self._speak, self._exchange, self._drain = speak, exchange, drain
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        try:
            await self._drain.run(self._send_all(send), receive, self._exchange.deadline)
        except ClientGone:
            raise
        except Exception as error:
            if not self._started:
                raise
            log_failure(self._exchange, error, api_error(error))

    async def _send_all(self, send: Send) -> None:
        speech, size = await self._speak(), 0
        async with aclosing(speech.parts) as parts:
            async for part in parts:
                if not self._started:
                    await self._start(send, speech.media_type)
                size += len(part)
                await send({"type": "http.response.body", "body": part, "more_body": True})
        if not self._started:
            await self._start(send, speech.media_type)
        self._exchange.log["bytes"] = size
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send, media_type: str) -> None:
        headers = [(b"content-type", media_type.encode("latin-1", "replace")), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._started = True
