"""PrivateSpeaker: a gateway's speaker on another machine, which gets no text that matches a private pattern."""

from __future__ import annotations

import asyncio

from nearfar.compiler.runtime.errors import RequestError

from ..executors.executor import Call
from ..schema.speech import SpeechRequest
from ..speech.speaker import ESPEAK, Speaker, Speech
from .decision.privacy import PrivateCheck


class PrivateSpeaker:
    """Implements `Speaker`. It owns ``speaker``."""

    is_remote = True

    def __init__(self, speaker: Speaker, check: PrivateCheck) -> None:
        self._speaker, self._check = speaker, check

    async def speak(self, request: SpeechRequest, call: Call) -> Speech:
        if await asyncio.to_thread(self._check.matches, request.input, request.instructions or ""):
            raise RequestError(
                "the text matches a private pattern of the policy, and the gateway's speaker is another server; speak "
                f"it on the device, or start the gateway with --speaker {ESPEAK}",
                code="private",
                param="input",
            )
        return await self._speaker.speak(request, call)

    async def close(self) -> None:
        await self._speaker.close()
