"""SoundSpec: how sound becomes frames for a model that hears, and how it reads in a prompt. It is data, which Python
and the page evaluate.

A sound is one channel of samples at `speech.SAMPLE_RATE`. Its **frames** are read by the model's tower, which makes
**features** of them, as of the patches of pictures: a row in place of the embedding of one placeholder token.
"""

from __future__ import annotations

from dataclasses import dataclass

from .expr import Count, Positive
from .images import ImagePrompt


@dataclass(frozen=True, slots=True)
class MelSpec:
    """Frames are logarithms of magnitudes in ``bins`` bands of the HTK mel scale, from 0 Hz to half of the rate. A
    frame of ``window`` samples begins every ``hop`` samples, the first one half a window before the sound; its spectrum
    has ``points``. ``floor`` is added to the magnitude of a band. A
    frame exists if the sample after its window is one of the sound (Gemma 4).
    """

    bins: Count
    window: Count
    hop: Count
    points: Count
    floor: Positive


@dataclass(frozen=True, slots=True)
class SoundSpec:
    """How sound becomes features: one for each ``frames`` frames, the last of which are zeros if some are missing.
    ``samples`` are those of a frame, if ``mel`` is None, and otherwise those from one frame to the next. A sound has at
    most ``most`` samples.

    ``prompt``: as that of a picture that is one tile.
    """

    samples: Count
    frames: Count
    mel: MelSpec | None
    most: Count
    prompt: ImagePrompt
