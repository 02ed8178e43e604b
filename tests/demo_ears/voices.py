"""Spoken commands of eSpeak NG, as training and evaluation hear them: voices, accents, speeds, pitches, noise.

A seed decides what is said, how and where. eSpeak NG has a state, by which a few samples differ between a process that
said something else before and one that did not, so the same seeds in the same order give the same sounds. The voices of
HELD_OUT_VOICES never speak in training. eSpeak NG is a program under GPL 3.0 that the recipe runs, from the package
espeakng-loader; its licence does not extend to the sound that it makes, and nothing of it is in the model's folder.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from nearfar.compiler.ir.speech import SAMPLE_RATE
from nearfar.server_fallback.speech.espeak_library import Espeak

from .commands import Command, any_command

Samples = npt.NDArray[np.float32]
WINDOW_SECONDS = 4
# Of what a voice says, which is too long for a window if it is slow.
MOST_SECONDS = 30
# Variants of eSpeak NG's voice: other formants, pitches and sources of sound.
HELD_OUT_VOICES = ("f3", "linda", "steph", "m5", "adam", "john", "klatt4", "victor")
VOICES = (
    "f1", "f2", "f4", "f5", "m1", "m2", "m3", "m4", "m6", "m7", "m8", "Alex", "Alicia", "Andrea", "Andy", "Annie",
    "Denis", "Gene", "Henrique", "Hugo", "Jacky", "Lee", "Marco", "Mario", "Michael", "Mike", "Reed", "Tweaky",
    "anika", "announcer", "antonio", "aunty", "belinda", "benjamin", "boris", "caleb", "david", "ed", "edward",
    "gustave", "ian", "iven", "kaukovalta", "klatt", "klatt2", "klatt3", "klatt5", "marcelo", "max", "michel",
    "miguel", "norbert", "pablo", "paul", "pedro", "quincy", "rob", "robert", "sandro", "shelby", "travis", "zac",
)  # fmt: skip
ACCENTS = ("en-us", "en", "en-gb-x-rp", "en-gb-scotland", "en-us-nyc", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029")
# espeakPITCH and espeakRANGE of speak_lib.h, from 0 to 99.
PITCH, RANGE = 3, 4
BLOCK = 512


@dataclass(frozen=True, slots=True)
class Utterance:
    """Samples at 16 kHz, and from where to where speech is, in seconds; ``text`` is empty if there is none."""

    samples: Samples
    text: str
    start: float
    end: float
    voice: str


def speak(seed: str, *, held_out: bool = False) -> Utterance:
    """A command in a window. ``held_out``: by a voice that training never hears."""
    generator = random.Random(seed)
    command = any_command(generator)
    voice = f"{generator.choice(ACCENTS)}+{generator.choice(HELD_OUT_VOICES if held_out else VOICES)}"
    spoken = say(command, voice, generator)
    room = WINDOW_SECONDS * SAMPLE_RATE - len(spoken)
    before = generator.randint(0, min(room, SAMPLE_RATE))
    # Not every sound ends when the window does: what follows it is silence, as the transcriber adds.
    after = generator.randint(0, room - before)
    samples = np.concatenate([np.zeros(before, np.float32), spoken, np.zeros(after, np.float32)])
    samples = in_room(samples, generator)
    start, end = before / SAMPLE_RATE, (before + len(spoken)) / SAMPLE_RATE
    return Utterance(samples, command.written, start, end, voice)


def silence(seed: str) -> Utterance:
    """Noise, or nothing at all."""
    generator = random.Random(seed)
    samples = np.zeros(generator.randint(SAMPLE_RATE // 2, WINDOW_SECONDS * SAMPLE_RATE), np.float32)
    if generator.random() < 0.8:
        numbers = np.random.default_rng(generator.getrandbits(32))
        samples += numbers.normal(0, 10 ** generator.uniform(-4, -1.5), len(samples)).astype(np.float32)
    return Utterance(samples, "", 0.0, 0.0, "")


def say(command: Command, voice: str, generator: random.Random) -> Samples:
    """The voice's samples without silence at their ends, shorter than a window."""
    synthesizer = _Synthesizer.of_process()
    while True:
        samples = synthesizer.samples(
            command.spoken, voice, generator.randint(140, 210), generator.randint(25, 75), generator.randint(25, 75)
        )
        # Played slower or faster, which moves pitch and formants together.
        samples = at_rate(samples, synthesizer.rate, SAMPLE_RATE * generator.uniform(0.92, 1.08))
        loud = np.flatnonzero(np.abs(samples) > 0.02 * np.abs(samples).max())
        samples = samples[loud[0] : loud[-1] + 1]
        if len(samples) < WINDOW_SECONDS * SAMPLE_RATE:
            return samples


def at_rate(samples: Samples, rate: float, wanted: float) -> Samples:
    """Samples at another rate, through the spectrum, so that nothing above half of it folds back. The lengths of the
    transforms are multiples of BLOCK, which are fast, so the rate is a little off.
    """
    samples = np.pad(samples, (0, -len(samples) % BLOCK))
    count = round(len(samples) * wanted / rate / BLOCK) * BLOCK
    spectrum = np.fft.rfft(samples)
    kept = np.zeros(count // 2 + 1, complex)
    size = min(len(kept), len(spectrum))
    kept[:size] = spectrum[:size]
    return (np.fft.irfft(kept, count) * (count / len(samples))).astype(np.float32)


def in_room(samples: Samples, generator: random.Random) -> Samples:
    """With another balance of low and high frequencies, an echo, noise and loudness, within -1 to 1."""
    numbers = np.random.default_rng(generator.getrandbits(32))
    length = len(samples)
    # A transform of a whole window is fast.
    samples = np.pad(samples, (0, WINDOW_SECONDS * SAMPLE_RATE - length))
    spectrum = np.fft.rfft(samples)
    octaves = np.log2(1 + np.arange(len(spectrum)) / len(spectrum) * 16)
    tilt = generator.uniform(-4, 4) * octaves + 3 * np.interp(octaves, np.linspace(0, 4.1, 7), numbers.normal(size=7))
    samples = np.fft.irfft(spectrum * 10 ** (tilt / 20), len(samples)).astype(np.float32)
    if generator.random() < 0.5:
        delay = generator.randint(80, 1200)
        samples[delay:] += np.float32(generator.uniform(0.05, 0.3)) * samples[:-delay]
    samples /= np.abs(samples).max()
    noise = numbers.normal(size=len(samples))
    if generator.random() < 0.5:
        # Each octave has the same energy.
        pink = np.fft.rfft(noise)
        pink[1:] /= np.sqrt(np.arange(1, len(pink)))
        noise = np.fft.irfft(pink, len(samples))
        noise /= noise.std()
    samples += (10 ** generator.uniform(-4, -1.7) * noise).astype(np.float32)
    finished: Samples = np.clip(samples[:length] * np.float32(10 ** generator.uniform(-1, -0.05)), -1, 1)
    return finished


def held_out_utterances(count: int) -> Sequence[Utterance]:
    return [speak(f"held out {index}", held_out=True) for index in range(count)]


class _Synthesizer(Espeak):
    """eSpeak NG in this process, with voices of other pitches."""

    @staticmethod
    @cache
    def of_process() -> _Synthesizer:
        import espeakng_loader

        return _Synthesizer(espeakng_loader.get_library_path(), espeakng_loader.get_data_path())

    def samples(self, text: str, voice: str, words_per_minute: int, pitch: int, pitch_range: int) -> Samples:
        """Raises DeviceError for an unknown voice."""
        for parameter, value in ((PITCH, pitch), (RANGE, pitch_range)):
            self._library.espeak_SetParameter(parameter, value, 0)
        spoken = self.say(text, voice, words_per_minute, MOST_SECONDS * self.rate)
        assert spoken is not None
        return (spoken / 32768).astype(np.float32)
