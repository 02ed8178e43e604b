"""Recordings in the messages of a chat: a transcriber writes down what is said, and the text takes their places."""

from __future__ import annotations

from collections.abc import Sequence

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.shared.script import SharedScript

from ..schema.chat import ChatCompletionChunk, ChatCompletionRequest, SoundPart, SoundTranscript
from ..schema.transcription import TranscriptionRequest
from ..text.attachments import decode_base64, recordings, with_text
from ..text.output import Changed, Output
from .executor import Call, Recording, Transcribes


async def written_down(
    transcriber: Transcribes, model: str, request: ChatCompletionRequest, call: Call
) -> tuple[ChatCompletionRequest, list[SoundTranscript]]:
    """The request with a text in place of each recording, and these texts. ``model`` is the transcriber's name.

    Raises RequestError, which names the part, and the errors of `Transcribes`.
    """
    transcripts = [
        await transcript_of(transcriber, model, part, f"messages[{index}].content[{at}]", call)
        for index, at, part in recordings(request.messages)
    ]
    return with_transcripts(request, transcripts), transcripts


async def transcript_of(
    transcriber: Transcribes, model: str, part: SoundPart, where: str, call: Call
) -> SoundTranscript:
    """What is said in one recording, which is at ``where``. Raises as `written_down`."""
    bounds = SharedScript.of_thread().ask("attachmentBounds")
    data = decode_base64(part.input_audio.data, f"{where}.input_audio")
    if len(data) > bounds["sound_bytes"]:
        raise RequestError(
            f"{where}.input_audio has {len(data)} bytes; at most {bounds['sound_bytes']} are read; send parts",
            param=f"{where}.input_audio",
        )
    form = TranscriptionRequest(model=model)
    try:
        made = await transcriber.transcribe(Recording(data, where, max_seconds=bounds["sound_seconds"]), form, call)
    except RequestError as error:
        raise RequestError(error.message, **{**error.details, "param": where}) from error
    return SoundTranscript(param=where, text=made.text, language=made.language, seconds=made.duration)


def with_transcripts(request: ChatCompletionRequest, transcripts: Sequence[SoundTranscript]) -> ChatCompletionRequest:
    """The request with a text in place of each recording that was written down."""
    texts, messages = {each.param: each.text for each in transcripts}, request.messages
    for index, at, _ in recordings(messages):
        where = f"messages[{index}].content[{at}]"
        if where in texts:
            messages = with_text(messages, index, at, texts[where])
    return request.model_copy(update={"messages": messages})


def reporting(
    output: Output[ChatCompletionChunk], transcripts: Sequence[SoundTranscript]
) -> Output[ChatCompletionChunk]:
    """An output whose first chunk has the transcripts."""
    left = [list(transcripts)]

    def change(chunk: ChatCompletionChunk) -> ChatCompletionChunk:
        return chunk.model_copy(update={"transcripts": left.pop()}) if left else chunk

    return Changed(output, change)
