"""RemoteSpeaker: the speech of another server with OpenAI's API, passed on as it arrives."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

from nearfar.compiler.runtime.errors import DeviceError

from ..executors.executor import Call
from ..executors.upstream import before, make_upstream
from ..schema.speech import SpeechRequest
from .speaker import Speech

PATH = "/v1/audio/speech"
# Ten minutes of stereo at 48 kHz, as WAV.
MAX_SPEECH_BYTES = 128 << 20
# What such servers send besides audio/*.
OTHER_TYPES = ("application/octet-stream", "text/event-stream")


class RemoteSpeaker:
    """Implements `Speaker`. ``url`` with or without /v1 at its end."""

    is_remote = True

    def __init__(
        self, url: str, api_key: str | None = None, max_bytes: int = MAX_SPEECH_BYTES, *, ca: Path | None = None
    ) -> None:
        """Raises RequestError for an invalid URL."""
        self._upstream, self._max_bytes = make_upstream(url, api_key, ca), max_bytes

    async def speak(self, request: SpeechRequest, call: Call) -> Speech:
        """The model and the voice are the server's."""
        body = request.model_dump(mode="json", exclude_none=True)
        async with AsyncExitStack() as opened:
            response = await opened.enter_async_context(self._upstream.sent("POST", PATH, body, call))
            media_type = response.headers.get("content-type", OTHER_TYPES[0])
            if not media_type.startswith("audio/") and media_type.split(";")[0].strip() not in OTHER_TYPES:
                raise DeviceError(
                    f"{self._upstream.url}: answers {PATH} with {media_type[:80]!r}, which is no sound; check the URL",
                    upstream=self._upstream.url,
                )
            return Speech(media_type, self._parts(response.aiter_bytes(), opened.pop_all(), call))

    async def _parts(
        self, received: AsyncIterator[bytes], opened: AsyncExitStack, call: Call
    ) -> AsyncGenerator[bytes, None]:
        size = 0
        # Failures of the connection become ours, and the connection is closed.
        async with opened:
            while (part := await before(call.deadline, anext(received, None))) is not None:
                size += len(part)
                if size > self._max_bytes:
                    raise DeviceError(
                        f"{self._upstream.url}: sends more than {self._max_bytes >> 20} MB of sound; send parts of the "
                        "text",
                        upstream=self._upstream.url,
                    )
                if part:
                    yield part
            if size == 0:
                raise DeviceError(
                    f"{self._upstream.url}: ended its answer without a sound; check the model and the voice",
                    upstream=self._upstream.url,
                )

    async def close(self) -> None:
        await self._upstream.close()
