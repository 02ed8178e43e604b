"""The code that runs in the process that speaks with espeak: a library in C, which gets what clients write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nearfar.compiler.runtime.errors import RequestError

from ..processes.worker_loop import serve
from .espeak_library import NORMAL_WORDS, Espeak, Samples

# Of OpenAI's speech.
SAMPLE_RATE = 24_000


@dataclass(frozen=True, slots=True)
class Say:
    """``voice``: a language, perhaps with + and a variant."""

    text: str
    voice: str
    speed: float
    most_samples: int


def main() -> None:
    serve(lambda _: speaking())


def speaking() -> Callable[[object], bytes]:
    import espeakng_loader

    espeak = Espeak(espeakng_loader.get_library_path(), espeakng_loader.get_data_path())

    def say(job: object) -> bytes:
        assert isinstance(job, Say)
        return speak(espeak, job)

    return say


def speak(espeak: Espeak, job: Say) -> bytes:
    """16-bit samples at `SAMPLE_RATE`, little-endian. Raises RequestError for an unknown voice and for a text that
    takes too long, and DeviceError.
    """
    import soxr

    voice = voice_file(espeak, job.voice)
    most = job.most_samples * espeak.rate // SAMPLE_RATE
    samples = espeak.say(job.text, voice, round(NORMAL_WORDS * job.speed), most)
    if samples is None:
        seconds = job.most_samples // SAMPLE_RATE
        raise RequestError(f"the text takes more than {seconds} seconds to speak; send parts of it", param="input")
    if not len(samples):
        return b""
    # Integers would be dithered, so that no two answers were the same.
    resampled = soxr.resample(samples.astype(np.float32), espeak.rate, SAMPLE_RATE)
    rounded: Samples = np.clip(np.rint(resampled), -(2**15), 2**15 - 1).astype("<i2")
    return rounded.tobytes()


def voice_file(espeak: Espeak, voice: str) -> str:
    """The file of a voice: that of "de-AT" is that of "de" if espeak has no other. Raises RequestError."""
    language, plus, variant = voice.partition("+")
    code = language.lower().replace("_", "-")
    while code not in espeak.voices and "-" in code:
        code = code.rpartition("-")[0]
    if code not in espeak.voices:
        raise RequestError(
            f"the voice {voice[:40]!r} is not known; voices of espeak are languages: {', '.join(espeak.voices)}; a "
            "variant such as +f3 may follow",
            param="voice",
        )
    if plus and variant not in espeak.variants:
        raise RequestError(
            f"the variant {variant[:40]!r} of the voice is not known; known: {', '.join(sorted(espeak.variants))}",
            param="voice",
        )
    return espeak.voices[code] + plus + variant
