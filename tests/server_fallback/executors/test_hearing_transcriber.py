"""Transcripts by models that hear in chats: as many at once as there are turns, because each holds all of its sound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
from answers import Generating

from nearfar.compiler.runtime.errors import RequestError, Unavailable
from nearfar.server_fallback.executors.executor import Abilities, Call, Recording
from nearfar.server_fallback.executors.hearing_transcriber import (
    MOST_AT_ONCE,
    HearingTranscriber,
    hearing_turns,
    transcriber_on,
    wav_of,
)
from nearfar.server_fallback.schema.chat import ChatCompletionChunk, ChatCompletionRequest, ChunkChoice, Delta
from nearfar.server_fallback.schema.common import Usage
from nearfar.server_fallback.schema.transcription import TranscriptionRequest

SOUND = Recording(wav_of(np.full(16_000, 0.1, np.float32)), "a.wav")
REQUEST = TranscriptionRequest(model="ears")


class Ears(Generating):
    """``running``: its chats now; they end once ``may_end`` is set."""

    def __init__(self, error: Exception | None = None) -> None:
        self.running = self.most = 0
        self.may_end, self._error = asyncio.Event(), error

    def abilities(self) -> Abilities:
        return Abilities(None, None, tools=False, embeds=False, hears=True)

    async def chat(self, request: ChatCompletionRequest, call: Call) -> AsyncGenerator[ChatCompletionChunk, None]:
        assert request.model == "ears"
        assert call.observe_token is not None
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.may_end.wait()
            if self._error is not None:
                raise self._error
            choice = ChunkChoice(index=0, delta=Delta(role="assistant", content="hello"), finish_reason="stop")
            yield ChatCompletionChunk(id="1", created=1, model="ears", choices=[choice])
            usage = Usage(prompt_tokens=1, completion_tokens=1, total_tokens=2)
            yield ChatCompletionChunk(id="1", created=1, model="ears", choices=[], usage=usage)
        finally:
            self.running -= 1


def on(ears: Any, turns: asyncio.Semaphore) -> HearingTranscriber:
    """A new one for each request, as the server makes them."""
    made = transcriber_on(ears, turns)
    assert isinstance(made, HearingTranscriber)
    return made


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_process_makes_few_at_once_and_others_wait() -> None:
    async def work() -> None:
        ears, turns = Ears(), hearing_turns()
        calls = [
            asyncio.ensure_future(on(ears, turns).transcribe(SOUND, REQUEST, Call(str(index))))
            for index in range(MOST_AT_ONCE + 5)
        ]
        await until(lambda: ears.running == MOST_AT_ONCE)
        # One that runs and one that waits leave.
        for left in (calls.pop(0), calls.pop()):
            left.cancel()
            await asyncio.wait([left])
            assert left.cancelled()
        await until(lambda: ears.running == MOST_AT_ONCE)
        ears.may_end.set()
        assert {made.text for made in await asyncio.gather(*calls)} == {"hello"}
        assert ears.most == MOST_AT_ONCE

    asyncio.run(work())


def test_a_failure_gives_its_turn_back() -> None:
    async def work() -> None:
        turns = hearing_turns()
        ears, damaged = Ears(Unavailable("gone")), Recording(b"RIFF", "b.wav")
        ears.may_end.set()
        for index in range(MOST_AT_ONCE + 1):
            for recording, kind in ((SOUND, Unavailable), (damaged, RequestError)):
                (error,) = await asyncio.gather(
                    on(ears, turns).transcribe(recording, REQUEST, Call(str(index))), return_exceptions=True
                )
                assert isinstance(error, kind)

    asyncio.run(work())
