"""The executor of models that transcribe sound: one sound after the other, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from nearfar.compiler.runtime.audio.ctc import transcriber_of
from nearfar.compiler.runtime.audio.sound import read_sound
from nearfar.compiler.runtime.audio.transcribe import Progress, Segment, Transcript, TranscriptionOptions
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import DeadlineExceeded, QueueFull, RequestError, Unavailable
from nearfar.compiler.runtime.runner import Runner

from ..engine.stats import EngineStats
from ..schema.completions import AnswerRequest
from ..schema.embeddings import EmbeddingRequest, EmbeddingResponse
from ..schema.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from ..schema.transcription import TranscriptionRequest
from ..text.output import Output
from .executor import Abilities, Call, ExecutorState, Heard, Recording
from .local_share import SpeechShare
from .text_model import TextModel

# Of one sound. A small file may hold far more silence than memory does: an hour takes 0.7 GB.
MAX_SECONDS = 3600
NOT_TEXT = "this model transcribes sound; send a file to /v1/audio/transcriptions, or use another model"


class SpeechModel:
    """What a model of sound does with text. ``context`` is that of its bundle."""

    def __init__(self, model: TextModel, context: int) -> None:
        self.model, self.context = model, context

    async def answer(self, request: AnswerRequest, call: Call, output: Output[Any]) -> None:  # noqa: ARG002
        raise RequestError(NOT_TEXT, param="model")

    async def embed(self, request: EmbeddingRequest, call: Call) -> EmbeddingResponse:  # noqa: ARG002
        raise RequestError(NOT_TEXT, param="model")

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        return await self.model.tokens_of_prompt(self.context, request)

    async def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        return await self.model.text_of(request)

    def abilities(self) -> Abilities:
        model = self.model
        return Abilities(
            model.tokenizer_sha256,
            model.vocab_size,
            tools=False,
            embeds=False,
            sound=True,
            model=model.model,
            task="transcribe",
            identity=model.identity,
        )


class SpeechExecutor(SpeechModel):
    """An `Executor`, and `Transcribes`. It owns the runner and closes it in the end. At most ``max_waiting`` requests
    wait for their turn. ``share`` lets other processes of the server use it, None if they cannot.
    """

    def __init__(
        self,
        runner: Runner,
        model: TextModel,
        *,
        max_waiting: int,
        memory_bytes: int | None = None,
        share: SpeechShare | None = None,
    ) -> None:
        super().__init__(model, runner.manifest.context)
        self.share = share
        self._runner, self._memory_bytes, self._max_waiting = runner, memory_bytes, max_waiting
        self._transcriber = transcriber_of(runner, model.tokenizer)
        self._thread = ThreadPoolExecutor(1, "nearfar-speech")
        # Those that wait or run.
        self._count = 0
        self._closed = threading.Event()

    async def transcribe(
        self, recording: Recording, request: TranscriptionRequest, call: Call, heard: Heard | None = None
    ) -> Transcript:
        """Cancelling this ends the transcript at the next token."""
        options = TranscriptionOptions(
            language=request.language,
            translate=recording.translate,
            timestamps=request.response_format not in ("json", "text"),
            prompt=request.prompt,
            temperature=request.temperature or None,
            words=request.words,
        )
        if self._closed.is_set():
            raise Unavailable("the model is being unloaded; try again later")
        if self._count > self._max_waiting:
            raise QueueFull(f"{self._max_waiting} requests are waiting for this model; try again later")
        gone = threading.Event()

        def ended() -> bool:
            return gone.is_set() or self._closed.is_set() or time.monotonic() > (call.deadline or float("inf"))

        loop = asyncio.get_running_loop()

        def progress(done: float, total: float, found: Sequence[Segment]) -> None:  # noqa: ARG001
            # A window that ends early has only a part of its text.
            if heard is not None and found and not ended():
                loop.call_soon_threadsafe(heard, "".join(segment.text for segment in found))

        self._count += 1
        read = partial(read_sound, recording.data, recording.name, recording.max_seconds or MAX_SECONDS)
        work = loop.run_in_executor(self._thread, self._run, read, options, progress, ended)
        work.add_done_callback(self._done)
        try:
            transcript = await asyncio.shield(work)
        except asyncio.CancelledError:
            gone.set()
            raise
        if transcript is None:
            if self._closed.is_set():
                raise Unavailable("the model was unloaded; try again later")
            raise DeadlineExceeded("the transcript took longer than the request allows; allow more time, or send less")
        return transcript

    def _run(
        self,
        read: Callable[[], FloatArray],
        options: TranscriptionOptions,
        progress: Progress,
        ended: Callable[[], bool],
    ) -> Transcript | None:
        """On the thread: the transcript, None if it ended early."""
        if ended():
            return None
        self._transcriber.check(options)
        transcript = self._transcriber.transcribe(read(), options, progress, ended)
        return None if ended() else transcript

    def _done(self, work: asyncio.Future[Transcript | None]) -> None:
        self._count -= 1
        # Nobody may be left to receive its error.
        if not work.cancelled():
            work.exception()

    def state(self) -> ExecutorState:
        running = min(self._count, 1)
        return ExecutorState(
            ready=not self._closed.is_set(),
            detail="closed" if self._closed.is_set() else self._runner.device,
            running=running,
            waiting=self._count - running,
            memory_bytes=self._memory_bytes,
            engine=EngineStats(silent_seconds=None),
        )

    async def close(self) -> None:
        self._closed.set()
        await asyncio.to_thread(self._thread.shutdown)
        self._runner.close()
