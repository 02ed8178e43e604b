"""Transcripts by models that hear in chats: window after window of a sound, each a chat of its own with the executor
that answers other chats. `compiler/runtime/audio/hearing.py` has the windows and the instructions.
"""

from __future__ import annotations

import asyncio
import base64
import io
import wave
from dataclasses import replace
from functools import partial

import numpy as np

from nearfar.compiler.ir.speech import SAMPLE_RATE
from nearfar.compiler.runtime.audio.hearing import HearingTask, SoundWindow, sound_windows
from nearfar.compiler.runtime.audio.sound import read_sound
from nearfar.compiler.runtime.audio.transcribe import Segment, Transcript, TranscriptionOptions
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import RequestError

from ..schema.chat import ChatCompletionRequest
from ..schema.fold import ChatFold
from ..schema.transcription import TranscriptionRequest
from ..text.output import folded
from .executor import Call, Executor, Heard, Recording, TellsAbilities, Transcribes
from .speech_executor import MAX_SECONDS

# What models hear at once, of executors that do not report it.
USUAL_SECONDS = 30.0
# The transcripts that are made at once: each has all samples of its sound in memory, 0.2 GB for an hour, and thrice as
# much while it decodes them. A file of some kilobytes may hold an hour of silence.
MOST_AT_ONCE = 4


def hearing_turns() -> asyncio.Semaphore:
    """The turns of all transcripts by models that hear in a process."""
    return asyncio.Semaphore(MOST_AT_ONCE)


class HearingTranscriber:
    """A `Transcribes`. ``executor`` answers about recordings in chats, of at most ``longest_seconds``. Transcripts wait
    for one of the ``turns``.
    """

    def __init__(self, executor: Executor, turns: asyncio.Semaphore, longest_seconds: float = USUAL_SECONDS) -> None:
        self._executor, self._turns, self._longest_seconds = executor, turns, longest_seconds

    async def transcribe(
        self, recording: Recording, request: TranscriptionRequest, call: Call, heard: Heard | None = None
    ) -> Transcript:
        """Cancelling this ends the transcript at the next token."""
        options = TranscriptionOptions(
            request.language,
            recording.translate,
            prompt=request.prompt,
            temperature=request.temperature or None,
            words=request.words,
        )
        task = HearingTask(request.model, options)
        async with self._turns:
            return await self._transcript(recording, request, task, call, heard)

    async def _transcript(
        self, recording: Recording, request: TranscriptionRequest, task: HearingTask, call: Call, heard: Heard | None
    ) -> Transcript:
        longest = recording.max_seconds or MAX_SECONDS
        samples: FloatArray = await asyncio.to_thread(read_sound, recording.data, recording.name, longest)
        segments = list[Segment]()
        for window in sound_windows(samples, self._longest_seconds):
            found = await self._segments(window, task, request.model, call)
            segments += found
            if heard is not None and found:
                heard("".join(segment.text for segment in found))
        kind = "translate" if recording.translate else "transcribe"
        return Transcript(kind, request.language, len(samples) / SAMPLE_RATE, tuple(segments))  # type: ignore[arg-type]

    async def _segments(self, window: SoundWindow, task: HearingTask, model: str, call: Call) -> list[Segment]:
        sound = {"data": base64.b64encode(wav_of(window.samples)).decode(), "format": "wav"}
        content = [{"type": "input_audio", "input_audio": sound}, {"type": "text", "text": task.instruction}]
        asked = ChatCompletionRequest.model_validate(
            {
                "model": model,
                "messages": [{"role": "user", "content": content}],
                "temperature": 0,
                "max_completion_tokens": task.max_tokens,
                "logprobs": True,
            }
        )
        tokens = list[int]()
        own = replace(call, observe_token=tokens.append)
        try:
            answer = await folded(partial(self._executor.answer, asked, own), ChatFold())
        except RequestError as error:
            raise RequestError(
                f"a chat with a part of the sound: {error.message}", **{**error.details, "param": "file"}
            ) from error
        (choice,) = answer.choices
        logprobs = [each.logprob for each in (choice.logprobs and choice.logprobs.content) or []]
        return task.segments(window, choice.message.content or "", tokens, float(np.mean(logprobs or [0.0])))


def transcriber_on(executor: Executor, turns: asyncio.Semaphore) -> Transcribes | None:
    """What transcribes with an executor: itself, or chats with a model that hears, which have these `hearing_turns`;
    None for other models.
    """
    if isinstance(executor, Transcribes):
        return executor
    can = executor.abilities() if isinstance(executor, TellsAbilities) else None
    if can is None or not can.hears:
        return None
    return HearingTranscriber(executor, turns, can.hears_seconds or USUAL_SECONDS)


def wav_of(samples: FloatArray) -> bytes:
    """A file of 16 bits, which keeps those of files of 16 bits as they are."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(SAMPLE_RATE)
        out.writeframes(np.clip(np.round(samples * 32768), -32768, 32767).astype("<i2").tobytes())
    return file.getvalue()
