"""A model of sound in a front end: the main process transcribes."""

from __future__ import annotations

import asyncio

from nearfar.compiler.runtime.audio.transcribe import Transcript

from ..engine.stats import EngineStats
from ..executors.executor import Call, ExecutorState, Heard, Recording
from ..executors.local_share import SpeechShare
from ..executors.speech_executor import SpeechModel
from ..executors.text_model import TextModel
from ..processes.connection import Connection
from ..schema.transcription import TranscriptionRequest
from .messages import Transcribe


async def open_shared_speech(share: SpeechShare, link: Connection) -> SharedSpeech:
    """Raises CheckpointError for a tokenizer that cannot be read."""
    model = await asyncio.to_thread(TextModel.of, share.bundle, share.name)
    # The bundle may be deleted while the model is served.
    await asyncio.to_thread(model.read)
    return SharedSpeech(model, share, link)


class SharedSpeech(SpeechModel):
    """An `Executor`, and `Transcribes`."""

    def __init__(self, model: TextModel, share: SpeechShare, link: Connection) -> None:
        super().__init__(model, share.bundle.manifest.context)
        self._share, self._link = share, link
        self._running = 0

    async def transcribe(
        self, recording: Recording, request: TranscriptionRequest, call: Call, heard: Heard | None = None
    ) -> Transcript:
        """Cancelling this ends the transcript in the main process, too."""
        # What observes an answer stays in this process.
        plain = Call(call.request_id, call.priority, call.deadline, call.headers, call.client)
        message = Transcribe(self._share.engine, recording, request, plain)
        self._running += 1
        try:
            transcript: Transcript = await self._link.call(message, cancels=True, on_part=heard)
        finally:
            self._running -= 1
        return transcript

    def state(self) -> ExecutorState:
        """``running``: the requests of this front end, which may wait for those of others."""
        return ExecutorState(
            ready=True,
            detail=self._share.device,
            running=self._running,
            memory_bytes=self._share.memory_bytes,
            engine=EngineStats(silent_seconds=None),
        )

    async def close(self) -> None:
        """The main process closes the model."""
