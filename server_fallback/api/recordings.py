"""Recordings in the messages of a chat: the server's transcriber writes them down, and the answer reports the texts."""

from __future__ import annotations

from nearfar.compiler.runtime.errors import RequestError

from ..executors.executor import Call, Transcribes
from ..executors.recordings import written_down
from ..schema.chat import ChatCompletionChunk, ChatCompletionRequest, SoundTranscript
from ..text.attachments import recordings
from ..text.output import Changed, Output
from .service import Service


async def heard(
    service: Service, request: ChatCompletionRequest, call: Call
) -> tuple[ChatCompletionRequest, list[SoundTranscript]]:
    """As `written_down`, by the server's transcriber. Without one, nothing is changed."""
    name = service.config.transcriber
    if name is None or not recordings(request.messages):
        return request, []
    executor = await service.models.executor(name)
    if not isinstance(executor, Transcribes):
        raise RequestError(f"the transcriber {name} transcribes no sound; start the server with a Whisper")
    return await written_down(executor, name, request, call)


def reporting(output: Output[ChatCompletionChunk], transcripts: list[SoundTranscript]) -> Output[ChatCompletionChunk]:
    """An output whose first chunk has the transcripts."""
    left = [transcripts]

    def change(chunk: ChatCompletionChunk) -> ChatCompletionChunk:
        return chunk.model_copy(update={"transcripts": left.pop()}) if left else chunk

    return Changed(output, change)
