"""The transcriber of a server: one of its models, which writes down the recordings in chats."""

from __future__ import annotations

import asyncio

from nearfar.compiler.runtime.audio.transcribe import Transcript
from nearfar.compiler.runtime.errors import RequestError

from ..schema.transcription import TranscriptionRequest
from .executor import Call, Executor, Heard, Models, Recording, Transcribes
from .hearing_transcriber import hearing_turns, transcriber_on


class TranscriberByName:
    """A `Transcribes`: the model of that name among ``models``, which are set before the first call. ``turns``: those
    of the process, by default its own.
    """

    def __init__(self, name: str, models: Models | None = None, turns: asyncio.Semaphore | None = None) -> None:
        self.name, self.models, self._turns = name, models, turns or hearing_turns()

    async def check(self) -> None:
        """Raises RequestError for a model that transcribes nothing, UnknownModel, and Unavailable while it loads."""
        assert self.models is not None
        self._of(await self.models.executor(self.name))

    async def transcribe(
        self, recording: Recording, request: TranscriptionRequest, call: Call, heard: Heard | None = None
    ) -> Transcript:
        """Raises the errors of `check`, too."""
        assert self.models is not None
        async with self.models.using(self.name) as executor:
            return await self._of(executor).transcribe(recording, request, call, heard)

    def _of(self, executor: Executor) -> Transcribes:
        transcriber = transcriber_on(executor, self._turns)
        if transcriber is None:
            raise RequestError(
                f"the transcriber {self.name} transcribes no sound; start the server with a model that does, such as "
                "Whisper",
                param="model",
            )
        return transcriber
