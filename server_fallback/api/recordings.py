"""Recordings in the messages of a chat: a transcriber writes down what is said, and the text takes their places."""

from __future__ import annotations

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.shared.script import SharedScript

from ..executors.executor import Call, Transcribes
from ..schema.chat import ChatCompletionChunk, ChatCompletionRequest, SoundTranscript
from ..schema.transcription import TranscriptionRequest
from ..text.attachments import decode_base64, recordings, with_text
from ..text.output import Changed, Output
from .service import Service


async def written_down(
    service: Service, request: ChatCompletionRequest, call: Call
) -> tuple[ChatCompletionRequest, list[SoundTranscript]]:
    """The request with a text in place of each recording, and these texts. Without a transcriber, nothing is changed.

    Raises RequestError, which names the part, and the errors of `Transcribes`.
    """
    name = service.config.transcriber
    sounds = [] if name is None else recordings(request.messages)
    if name is None or not sounds:
        return request, []
    executor = await service.models.executor(name)
    if not isinstance(executor, Transcribes):
        raise RequestError(f"the transcriber {name} transcribes no sound; start the server with a Whisper")
    bounds = SharedScript.of_thread().ask("attachmentBounds")
    messages, transcripts = request.messages, list[SoundTranscript]()
    for index, at, part in sounds:
        where = f"messages[{index}].content[{at}]"
        data = decode_base64(part.input_audio.data, f"{where}.input_audio")
        if len(data) > bounds["sound_bytes"]:
            raise RequestError(
                f"{where}.input_audio has {len(data)} bytes; at most {bounds['sound_bytes']} are read; send parts",
                param=f"{where}.input_audio",
            )
        form = TranscriptionRequest(model=name)
        try:
            made = await executor.transcribe(
                data, where, form, call, translate=False, max_seconds=bounds["sound_seconds"]
            )
        except RequestError as error:
            raise RequestError(error.message, **{**error.details, "param": where}) from error
        transcripts.append(SoundTranscript(param=where, text=made.text, language=made.language, seconds=made.duration))
        messages = with_text(messages, index, at, made.text)
    return request.model_copy(update={"messages": messages}), transcripts


def reporting(output: Output[ChatCompletionChunk], transcripts: list[SoundTranscript]) -> Output[ChatCompletionChunk]:
    """An output whose first chunk has the transcripts."""
    left = [transcripts]

    def change(chunk: ChatCompletionChunk) -> ChatCompletionChunk:
        return chunk.model_copy(update={"transcripts": left.pop()}) if left else chunk

    return Changed(output, change)
