"""The frames of sound that Parakeet reads are those of transformers' feature extractor."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from sound_oracle import PARAKEET, frames_of_parakeet, sound
from sounds import chirp
from tolerances import F32, relative_error

from nearfar.compiler.runtime.audio.parakeet_frames import FEWEST_SAMPLES, parakeet_frames


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("name", ["long", "short", "fewest"])
def test_frames_are_those_of_transformers(bins: int, name: str) -> None:
    samples = {
        "long": chirp(700_123),
        "short": chirp(1_777),
        "fewest": chirp(FEWEST_SAMPLES),
    }[name]
    found = parakeet_frames(samples, bins)
    assert found.dtype == np.float32
    expected = frames_of_parakeet(samples, bins).T
    assert found.shape == expected.shape == (len(samples) // 160, bins)
    # The extractor computes in float32, of which bands that hardly change keep few digits.
    assert relative_error(found, expected) < 2 * F32


def test_silence_has_no_energy_anywhere() -> None:
    """The extractor's own float32 mean of equal numbers is a little off, which its small deviation magnifies."""
    assert np.abs(parakeet_frames(np.zeros(4_000, np.float32), 80)).max() < 1e-3


@pytest.mark.parametrize(
    "case", json.loads(PARAKEET.read_text())["cases"], ids=lambda case: f"{case['name']}, {case['bins']}"
)
def test_frames_are_those_of_the_shared_vectors(case: dict[str, Any]) -> None:
    """With which the page is compared (web/test/audio)."""
    frames = parakeet_frames(sound(case["samples"], case["quiet"]), case["bins"]).T
    assert abs(float(frames.mean()) - case["mean"]) < 1e-4
    for bin_, frame, value in case["numbers"]:
        assert abs(float(frames[bin_, frame]) - value) < 1e-4
