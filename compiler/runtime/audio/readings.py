"""Readings: a sound as the windows that an encoder reads, one after the other. Places in it are numbers of frames of 10
ms, whatever the encoder's own frames are.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ...ir.spec import AudioSpec
from ...ir.speech import FRAME, HOP, SAMPLE_RATE
from ...shared.script import SharedScript
from ..batch import FloatArray
from .log_mel import log_mel
from .windows import least_samples

FRAMES_PER_SECOND = SAMPLE_RATE // HOP
# What is added to the mean square of silence before its logarithm.
LEAST_POWER = 1e-10


class Reading(Protocol):
    """``count``: the frames of the sound. ``is_long``: whether it has several windows."""

    count: int
    is_long: bool

    def window(self, seek: int) -> tuple[int, FloatArray]:
        """The window that begins at a frame: how many frames of the sound it has, and what the encoder reads."""


def reading_of(samples: FloatArray, audio: AudioSpec, seconds: int) -> Reading:
    """The reading of samples at 16 kHz. ``seconds``: those of the longest window."""
    if audio.mel_bins:
        return MelReading(samples, audio.mel_bins, audio.frames_of_row * audio.positions)
    return SampleReading(samples, least_samples(audio), seconds * FRAMES_PER_SECOND)


class MelReading:
    """Frames of mel bands in windows of ``length`` frames. Those behind the end of the sound are zeros, as
    openai-whisper has them; transformers has silence there if the sound is shorter than a window.
    """

    def __init__(self, samples: FloatArray, bins: int, length: int) -> None:
        self._length = length
        self.is_long = len(samples) > length * HOP
        self.count = max(1, len(samples) // HOP)
        # The last frames reach into the silence behind the sound.
        self._frames = log_mel(np.pad(samples, (0, FRAME)), bins)[:, : self.count]

    def window(self, seek: int) -> tuple[int, FloatArray]:
        frames = self._frames[:, seek : seek + self._length]
        short = self._length - frames.shape[1]
        return min(self.count - seek, self._length), np.pad(frames, ((0, 0), (0, short)))


class SampleReading:
    """Samples in windows of any length. A longer sound than the ``longest`` one, in frames of 10 ms, is cut at a quiet
    place, and silence follows what has less than the ``least`` samples.
    """

    def __init__(self, samples: FloatArray, least: int, longest: int) -> None:
        self._samples, self._least, self._longest = samples, least, longest
        self.count = -(-len(samples) // HOP)
        self.is_long = self.count > self._longest

    def window(self, seek: int) -> tuple[int, FloatArray]:
        frames = self.count - seek
        if frames > self._longest:
            window = self._samples[seek * HOP : (seek + self._longest) * HOP]
            frames = SharedScript.of_thread().ask("quietEnd", levels(window))
        window = self._samples[seek * HOP : (seek + frames) * HOP]
        return frames, np.pad(window, (0, max(0, self._least - len(window))))


def levels(samples: FloatArray) -> list[int]:
    """How loud each complete frame is, in whole decibels, so that both languages compute the same."""
    frames = samples[: len(samples) // HOP * HOP].reshape(-1, HOP).astype(np.float64)
    powers = (frames * frames).mean(axis=1) + LEAST_POWER
    return [int(level) for level in np.floor(10 * np.log10(powers) + 0.5)]
