"""From samples to the frames that a model's tower reads. The layout comes from `web/src/shared/sounds.ts`;
`web/src/images/sounds.ts` computes the same in the page.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from ...ir.sounds import SoundSpec
from ...shared.script import SharedScript
from ..batch import FloatArray, IntArray
from .magnitude_frames import magnitude_frames


class SoundRows(NamedTuple):
    """The frames of a sound, a row (features, elements) for each feature, and how many of each row's frames exist
    (features,).
    """

    frames: FloatArray
    row_frames: IntArray


@dataclass(frozen=True, slots=True)
class PreparedSound:
    """A sound for the plan "hearing": ``rows`` for its ``features``.

    ``text`` is what stands for it in the prompt, and ``key`` names its samples and how they were read.
    """

    rows: SoundRows
    features: int
    text: str
    key: str


@dataclass(frozen=True, slots=True)
class HeardSound:
    """As `PreparedSound`, before the frames are computed."""

    samples: FloatArray
    features: int
    text: str
    key: str


def heard_sound(spec: SoundSpec, samples: FloatArray) -> HeardSound:
    """Samples (N,) at 16 kHz. Raises RequestError for too few and for too many of them."""
    layout = sound_layout(spec, len(samples))
    return HeardSound(samples, layout["features"], layout["text"], sound_key(spec, samples))


def prepare_sound(spec: SoundSpec, samples: FloatArray) -> PreparedSound:
    """Samples (N,) at 16 kHz. Raises RequestError for too few and for too many of them."""
    heard = heard_sound(spec, samples)
    return PreparedSound(sound_rows(spec, samples), heard.features, heard.text, heard.key)


def sound_layout(spec: SoundSpec, samples: int) -> dict[str, Any]:
    """`soundLayout` of `web/src/shared/sounds.ts`. Raises RequestError."""
    layout: dict[str, Any] = SharedScript.of_thread().ask("soundLayout", asdict(spec), samples)
    return layout


def sound_key(spec: SoundSpec, samples: FloatArray) -> str:
    """The SHA-256 of a sound's samples and of how they are read, in hexadecimal."""
    head = SharedScript.of_thread().ask("soundKeyHead", asdict(spec), len(samples))
    return hashlib.sha256(head.encode() + np.ascontiguousarray(samples, "<f4").tobytes()).hexdigest()


def sound_rows(spec: SoundSpec, samples: FloatArray) -> SoundRows:
    """The frames of samples (N,) at 16 kHz; those that are missing in the last row are zeros."""
    layout = sound_layout(spec, len(samples))
    columns = spec.samples if spec.mel is None else spec.mel.bins
    rows = np.zeros((layout["features"], spec.frames * columns), np.float32)
    values = samples if spec.mel is None else magnitude_frames(spec.mel, samples, layout["frames"]).reshape(-1)
    rows.reshape(-1)[: len(values)] = values
    row_frames = np.full(len(rows), spec.frames, np.int32)
    row_frames[-1] = layout["frames"] - spec.frames * (len(rows) - 1)
    return SoundRows(rows, row_frames)
