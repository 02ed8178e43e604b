"""The transcriber of a server: one of its models, which writes down the recordings in chats."""

from __future__ import annotations

from collections.abc import Callable

from nearfar.compiler.runtime.audio.transcribe import Transcript
from nearfar.compiler.runtime.errors import RequestError

from ..schema.transcription import TranscriptionRequest
from .executor import Call, Models, Transcribes
from .hearing_transcriber import transcriber_on


class TranscriberByName:
    """A `Transcribes`: the model of that name among ``models``, which are set before the first call."""

    def __init__(self, name: str, models: Models | None = None) -> None:
        self.name, self.models = name, models

    async def check(self) -> None:
        """Raises RequestError for a model that transcribes nothing, UnknownModel, and Unavailable while it loads."""
        await self._model()

    async def transcribe(
        self,
        data: bytes,
        name: str,
        request: TranscriptionRequest,
        call: Call,
        *,
        translate: bool,
        max_seconds: float | None = None,
        heard: Callable[[str], None] | None = None,
    ) -> Transcript:
        """Raises the errors of `check`, too."""
        model = await self._model()
        return await model.transcribe(
            data, name, request, call, translate=translate, max_seconds=max_seconds, heard=heard
        )

    async def _model(self) -> Transcribes:
        assert self.models is not None
        transcriber = transcriber_on(await self.models.executor(self.name))
        if transcriber is None:
            raise RequestError(
                f"the transcriber {self.name} transcribes no sound; start the server with a model that does, such as "
                "Whisper",
                param="model",
            )
        return transcriber
