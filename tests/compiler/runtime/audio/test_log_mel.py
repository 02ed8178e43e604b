"""The frames of sound are those of transformers' feature extractor."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from sound_oracle import VECTORS, sound
from sounds import chirp
from tolerances import F32, relative_error

from nearfar.compiler.runtime.audio.log_mel import log_mel

# How far frames of the extractor's own numpy are away, relative to the largest number; those that torch makes, with
# spectra in float32, lose digits of quiet bands beside loud ones.
NUMPY = 1e-6


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("sound", ["window", "long", "short", "silence", "click"])
def test_frames_are_those_of_transformers(bins: int, sound: str) -> None:
    """Of a whole window, and of sound of other lengths, whose last frame is not complete."""
    from transformers import WhisperFeatureExtractor

    samples = {
        "window": chirp(480_000),
        "long": chirp(700_123),
        "short": chirp(1_777),
        "silence": np.zeros(4_000, np.float32),
        "click": np.eye(1, 5_000, 2_500, dtype=np.float32)[0],
    }[sound]
    extractor = WhisperFeatureExtractor(feature_size=bins)
    expected = extractor(
        samples, sampling_rate=16000, return_tensors="np", truncation=False, padding="longest"
    ).input_features[0]
    found = log_mel(samples, bins)
    assert found.dtype == np.float32
    assert relative_error(found, expected) < F32
    exact = extractor._np_extract_fbank_features(samples[None].astype(np.float64), "cpu")[0]
    assert relative_error(found, exact) < NUMPY


def test_many_frames_are_those_of_few() -> None:
    """Spectra are computed in blocks; the loudest frame of all is the same for every block."""
    samples = chirp(16000 * 50)
    samples[: 16000 * 45] *= np.float32(1e-4)
    frames = log_mel(samples, 80)
    assert frames.shape == (80, 5000)
    assert frames[:, :4000].max() < frames.max() - 1
    assert frames.max() - frames.min() == pytest.approx(2, abs=1e-5)


@pytest.mark.parametrize(
    "case", json.loads(VECTORS.read_text())["cases"], ids=lambda case: f"{case['name']}, {case['bins']}"
)
def test_frames_are_those_of_the_shared_vectors(case: dict[str, Any]) -> None:
    """With which the page is compared (web/test/audio)."""
    frames = log_mel(sound(case["samples"], case["quiet"]), case["bins"])
    assert frames.mean(dtype=np.float64) == pytest.approx(case["mean"], abs=1e-5)
    for band, frame, number in case["numbers"]:
        assert frames[band, frame] == pytest.approx(number, abs=1e-5)
