"""Heard: what the transcriber of this machine wrote down of a request's recordings for near, once for all attempts of
an answer. Far never receives it: the texts that may leave are those of `choose_with_descriptions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ...executors.executor import Call
from ...executors.recordings import with_transcripts, written_down
from ...schema.chat import ChatCompletionRequest, SoundTranscript
from ...schema.completions import CompletionRequest
from ...text.attachments import recordings
from ..sides.near import NearSide


class Heard:
    def __init__(self, near: NearSide | None, call: Call) -> None:
        self._near, self._call = near, call
        self._lock = asyncio.Lock()
        # Those of a request's messages, to which a continuation only adds one.
        self._transcripts: Sequence[SoundTranscript] | None = None

    async def read(
        self, request: ChatCompletionRequest | CompletionRequest
    ) -> tuple[ChatCompletionRequest | CompletionRequest, Sequence[SoundTranscript]]:
        """The request as near reads it, and the texts that it has in place of recordings; none if its model hears.

        Raises RequestError, which names the part, and the errors of `Transcribes`.
        """
        near = self._near
        if near is None or near.transcriber is None or near.hears or isinstance(request, CompletionRequest):
            return request, ()
        if not recordings(request.messages):
            return request, ()
        async with self._lock:
            if self._transcripts is None:
                _, self._transcripts = await written_down(near.transcriber, near.name, request, self._call)
        return with_transcripts(request, self._transcripts), self._transcripts
