"""Heard: what the transcriber of this machine wrote down of a request's recordings, once for all attempts of an
answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ...executors.executor import Call
from ...executors.recordings import with_transcripts, written_down
from ...schema.chat import ChatCompletionRequest, SoundTranscript
from ...schema.completions import CompletionRequest
from ...schema.route import Side
from ...text.attachments import recordings
from ..sides.sides import Sides


class Heard:
    def __init__(self, sides: Sides, call: Call) -> None:
        self._sides, self._call = sides, call
        self._lock = asyncio.Lock()
        # Those of a request's messages, to which a continuation only adds one.
        self._transcripts: Sequence[SoundTranscript] | None = None

    def is_needed(self, side: Side, request: ChatCompletionRequest | CompletionRequest) -> bool:
        """Whether a side reads texts in place of the request's recordings: near unless its model hears, and far unless
        its server reads sound.
        """
        near, far = self._sides.near, self._sides.far
        if near is None or near.transcriber is None or isinstance(request, CompletionRequest):
            return False
        hears = near.hears if side == "near" else far is not None and far.hears
        return bool(recordings(request.messages)) and not hears

    async def read(
        self, side: Side, request: ChatCompletionRequest | CompletionRequest
    ) -> tuple[ChatCompletionRequest | CompletionRequest, Sequence[SoundTranscript]]:
        """The request as the side reads it, and the texts that it has in place of recordings. Raises RequestError,
        which names the part, and the errors of `Transcribes`.
        """
        if not self.is_needed(side, request):
            return request, ()
        assert isinstance(request, ChatCompletionRequest)
        near = self._sides.near
        assert near is not None
        assert near.transcriber is not None
        async with self._lock:
            if self._transcripts is None:
                _, self._transcripts = await written_down(near.transcriber, near.name, request, self._call)
        return with_transcripts(request, self._transcripts), self._transcripts

    def known(
        self, side: Side, request: ChatCompletionRequest | CompletionRequest
    ) -> ChatCompletionRequest | CompletionRequest | None:
        """The request as the side reads it, None if its recordings are not written down yet."""
        if not self.is_needed(side, request):
            return request
        assert isinstance(request, ChatCompletionRequest)
        return None if self._transcripts is None else with_transcripts(request, self._transcripts)
