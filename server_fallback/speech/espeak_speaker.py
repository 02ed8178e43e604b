"""EspeakSpeaker: eSpeak NG's voices on this machine, in a process of its own. A text is spoken in parts, and clients
take turns with them.

eSpeak NG is under the GPL-3. It is a package that the operator installs (`nearfar[espeak]`), and no part of nearfar.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from importlib.util import find_spec

from nearfar.compiler.runtime.errors import QueueFull, RequestError, ToolError, Unavailable

from ..executors.executor import Call, UnknownModel
from ..executors.upstream import before
from ..processes.worker import WorkerEnded, WorkerLimits, WorkerProcess
from ..schema.speech import SpeechRequest
from ..text.fair_turns import FairTurns
from .espeak_library import LEAST_WORDS, NORMAL_WORDS
from .espeak_worker import SAMPLE_RATE, Say
from .speaker import ESPEAK, Speech

MEDIA_TYPES = {"wav": "audio/wav", "pcm": "audio/pcm"}
SAMPLE_BYTES = 2
# 43 MB. A text of 4,096 characters takes five minutes; one of signs whose names are spoken takes longer.
MAX_SECONDS = 900
# Of WAV files that are being made, half of it for one client.
HELD_BYTES = 256 << 20
# A part ends at the first end of a sentence after this many characters, or at the last space before the most.
PART_CHARACTERS, MOST_CHARACTERS = 120, 600
SENTENCE_END = re.compile(r"[.!?…]['\")\]]*\s+|[。！？\n]\s*")
# Of one part. The process ends a call that takes longer by far itself.
PART_SECONDS = 20.0
LIMITS = WorkerLimits(memory_bytes=1 << 30, keeps_bytes=256 << 20, most_seconds=30)


class EspeakSpeaker:
    """Implements `Speaker`, for the model "espeak"."""

    is_remote = False

    def __init__(self) -> None:
        """Raises ToolError if the library is not installed."""
        missing = [name for name in ("espeakng_loader", "soxr") if find_spec(name) is None]
        if missing:
            raise ToolError(f"--speaker {ESPEAK} needs {' and '.join(missing)}; run pip install 'nearfar[espeak]'")
        self._turns = FairTurns()
        # The bytes of WAV files that are being made, by client.
        self._held = Counter[str]()
        self._process = WorkerProcess(f"{__package__}.espeak_worker", LIMITS)

    async def speak(self, request: SpeechRequest, call: Call) -> Speech:
        """WAV as a whole, because its header says how long it is; PCM in parts. Both have one channel at 24 kHz."""
        check(request)
        form, parts = request.response_format or "wav", self._parts(request, call)
        return Speech(MEDIA_TYPES[form], self._as_wav(parts, call.client) if form == "wav" else parts)

    async def _parts(self, request: SpeechRequest, call: Call) -> AsyncGenerator[bytes, None]:
        assert isinstance(request.voice, str)
        left = MAX_SECONDS * SAMPLE_RATE
        for text in parts_of(request.input):
            sound = await before(call.deadline, self._say(Say(text, request.voice, request.speed, left), call.client))
            left -= len(sound) // SAMPLE_BYTES
            yield sound

    async def _say(self, job: Say, client: str) -> bytes:
        async with self._turns.turn(client):
            try:
                sound: bytes = await self._process.call(job, PART_SECONDS)
            except WorkerEnded as ended:
                if ended.timed_out:
                    raise RequestError(
                        f"a part of the text takes more than {PART_SECONDS:g} s to speak; send less", param="input"
                    ) from ended
                raise Unavailable("the process that speaks was ended; send the request again") from ended
            except MemoryError as error:
                raise RequestError("the text needs too much memory to speak; send less", param="input") from error
        return sound

    async def _as_wav(self, parts: AsyncGenerator[bytes, None], client: str) -> AsyncGenerator[bytes, None]:
        """One part with all of the samples."""
        samples = list[bytes]()
        try:
            async for part in parts:
                self._held[client] += len(part)
                samples.append(part)
                if self._held[client] > HELD_BYTES // 2 or self._held.total() > HELD_BYTES:
                    raise QueueFull(
                        "the sounds that are being made take too much memory; try again later, request pcm, which is "
                        "sent part by part, or send less text"
                    )
            yield wav_file(b"".join(samples))
        finally:
            await parts.aclose()
            self._held[client] -= sum(map(len, samples))
            self._held += Counter()

    async def close(self) -> None:
        self._process.close()


def check(request: SpeechRequest) -> None:
    """Raises RequestError for what espeak does not do, and UnknownModel for another model."""
    if request.model != ESPEAK:
        raise UnknownModel(f"the model {request.model[:100]!r} does not speak here; use {ESPEAK!r}", param="model")
    if not isinstance(request.voice, str):
        raise RequestError("espeak has no voices by id; name a language, such as 'en'", param="voice")
    if request.response_format not in (None, *MEDIA_TYPES):
        raise RequestError(
            f"espeak does not write {request.response_format}; supported: {', '.join(MEDIA_TYPES)}",
            param="response_format",
        )
    if request.stream_format == "sse":
        raise RequestError("espeak sends no events; use stream_format 'audio'", param="stream_format")
    if request.instructions:
        raise RequestError("espeak follows no instructions; leave them out", param="instructions")
    slowest = LEAST_WORDS / NORMAL_WORDS
    if request.speed < slowest:
        raise RequestError(f"espeak speaks at speeds from {slowest:.2f} to 4, not {request.speed:g}", param="speed")


def parts_of(text: str) -> Iterator[str]:
    """The text in parts of some sentences."""
    while len(text) > PART_CHARACTERS:
        end = SENTENCE_END.search(text, PART_CHARACTERS, MOST_CHARACTERS)
        cut = end.end() if end is not None else text.rfind(" ", 1, MOST_CHARACTERS) + 1
        if end is None and len(text) <= MOST_CHARACTERS:
            break
        cut = cut or MOST_CHARACTERS
        yield text[:cut]
        text = text[cut:]
    if text:
        yield text


def wav_file(samples: bytes) -> bytes:
    """A file with samples of 16 bits (RIFF, 1991)."""
    form = struct.pack("<HHIIHH", 1, 1, SAMPLE_RATE, SAMPLE_RATE * SAMPLE_BYTES, SAMPLE_BYTES, 8 * SAMPLE_BYTES)
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks
