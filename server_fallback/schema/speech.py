"""/v1/audio/speech."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .common import Request

# OpenAI's bound, in characters.
MAX_INPUT = 4096


class CustomVoice(Request):
    id: str


class SpeechRequest(Request):
    """``response_format`` None: the speaker's own, which the answer's Content-Type says."""

    model: str
    input: Annotated[str, Field(min_length=1, max_length=MAX_INPUT)]
    voice: str | CustomVoice
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = None
    speed: Annotated[float, Field(ge=0.25, le=4)] = 1.0
    instructions: Annotated[str, Field(max_length=MAX_INPUT)] | None = None
    stream_format: Literal["audio", "sse"] | None = None


# For the OpenAPI document: the answer.
SOUND: dict[int | str, dict[str, Any]] = {
    200: {"description": "The sound.", "content": {"audio/*": {"schema": {"type": "string", "format": "binary"}}}}
}
