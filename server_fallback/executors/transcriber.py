"""The transcriber of a server: one of its models, which writes down the recordings in chats."""

from __future__ import annotations

import asyncio

from nearfar.compiler.runtime.audio.transcribe import Transcript
from nearfar.compiler.runtime.errors import RequestError

from ..schema.transcription import TranscriptionRequest
from .executor import Call, Heard, Models, Recording, Transcribes
from .hearing_transcriber import hearing_turns, transcriber_on


class TranscriberByName:
    """A `Transcribes`: the model of that name among ``models``, which are set before the first call. ``turns``: those
    of the process, by default its own.
    """

    def __init__(self, name: str, models: Models | None = None, turns: asyncio.Semaphore | None = None) -> None:
        self.name, self.models, self._turns = name, models, turns or hearing_turns()

    async def check(self) -> None:
        """Raises RequestError for a model that transcribes nothing, UnknownModel, and Unavailable while it loads."""
        await self._model()

    async def transcribe(
        self, recording: Recording, request: TranscriptionRequest, call: Call, heard: Heard | None = None
    ) -> Transcript:
        """Raises the errors of `check`, too."""
        model = await self._model()
        return await model.transcribe(recording, request, call, heard)

    async def _model(self) -> Transcribes:
        assert self.models is not None
        transcriber = transcriber_on(await self.models.executor(self.name), self._turns)
        if transcriber is None:
            raise RequestError(
                f"the transcriber {self.name} transcribes no sound; start the server with a model that does, such as "
                "Whisper",
                param="model",
            )
        return transcriber
