"""Speaker: the one interface of what speaks texts, and the speakers that an operator can choose."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nearfar.compiler.runtime.errors import RequestError

from ..executors.executor import Call
from ..schema.speech import SpeechRequest

ESPEAK = "espeak"
API_KEY_OPTION = "--speaker-api-key-env"


@dataclass(frozen=True, slots=True)
class Speech:
    """Sound, in parts as they are made. Closing ``parts`` ends the work on them."""

    media_type: str
    parts: AsyncGenerator[bytes, None]


class Speaker(Protocol):
    @property
    def is_remote(self) -> bool:
        """Whether texts leave this machine."""

    async def speak(self, request: SpeechRequest, call: Call) -> Speech:
        """Raises RequestError, QueueFull, DeadlineExceeded, Unavailable or DeviceError, here or with a part."""

    async def close(self) -> None: ...


def open_speaker(
    name: str, api_key_variable: str | None, environment: Mapping[str, str], ca: Path | None = None
) -> Speaker:
    """``name`` is "espeak" or the URL of a server with OpenAI's API; for ``ca`` see `make_upstream`. Nothing is sent or
    started before the first text.

    Raises RequestError for another name, and for a variable that is not set; ToolError if espeak is not installed.
    """
    if name == ESPEAK:
        from .espeak_speaker import EspeakSpeaker

        if api_key_variable is not None:
            raise RequestError(f"{API_KEY_OPTION} is for the URL of a server; --speaker {ESPEAK} needs no key")
        return EspeakSpeaker()
    from .remote_speaker import RemoteSpeaker

    if not name.startswith(("http://", "https://")):
        raise RequestError(f"--speaker {name}: give {ESPEAK}, or the URL of a server such as http://host:8880/v1")
    key = None
    if api_key_variable is not None and not (key := environment.get(api_key_variable)):
        raise RequestError(f"{API_KEY_OPTION} {api_key_variable}: this environment variable is not set")
    return RemoteSpeaker(name, key, ca=ca)
