"""/v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .common import Items, LeftOut, Reply, Request


class TranscriptionRequest(Request):
    """The fields of a form beside its file. ``temperature`` 0, the default: temperatures from 0 on, until a window's
    text is good. ``timestamp_granularities`` "word" is for models that know when each word is said.
    """

    model: str
    language: str | None = None
    prompt: str = ""
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: Annotated[float, Field(ge=0, le=1)] = 0.0
    timestamp_granularities: Items[Literal["segment", "word"]] | None = None
    stream: bool = False

    @property
    def words(self) -> bool:
        """Whether the times of words are requested."""
        return "word" in (self.timestamp_granularities or [])


class AudioUsage(Reply):
    """``seconds`` of sound, rounded up."""

    type: Literal["duration"] = "duration"
    seconds: int


class TranscriptionSegment(Reply):
    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class TranscriptionWord(Reply):
    word: str
    start: float
    end: float


class TranscriptionResponse(Reply):
    """The fields behind ``text`` are those of response_format "verbose_json"."""

    text: str
    task: LeftOut[Literal["transcribe", "translate"]] = None
    language: LeftOut[str] = None
    duration: LeftOut[float] = None
    words: LeftOut[list[TranscriptionWord]] = None
    segments: LeftOut[list[TranscriptionSegment]] = None
    usage: AudioUsage


class TranscriptTextDelta(Reply):
    """An event of a stream: the text of a window, as soon as it is final."""

    type: Literal["transcript.text.delta"] = "transcript.text.delta"
    delta: str


class TranscriptTextDone(Reply):
    """The last event of a stream: the whole text, which is that of all deltas."""

    type: Literal["transcript.text.done"] = "transcript.text.done"
    text: str
    usage: AudioUsage


# For the OpenAPI document: the parts of the form.
FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "model"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "model": {"type": "string"},
                        "language": {"type": "string"},
                        "prompt": {"type": "string"},
                        "response_format": {"enum": ["json", "text", "srt", "verbose_json", "vtt"]},
                        "temperature": {"type": "number", "minimum": 0, "maximum": 1},
                        "timestamp_granularities[]": {"type": "array", "items": {"enum": ["segment", "word"]}},
                        "stream": {"type": "boolean"},
                    },
                }
            }
        },
    }
}
