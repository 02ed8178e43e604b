"""The frames of sound that Gemma 4 reads are those of transformers' feature extractor."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from sound_oracle import GEMMA, frames_of_gemma, sound
from sounds import chirp
from tolerances import F32, relative_error

from nearfar.compiler.ir.images import ImagePrompt
from nearfar.compiler.ir.sounds import MelSpec, SoundSpec
from nearfar.compiler.runtime.audio.magnitude_frames import magnitude_frames
from nearfar.compiler.runtime.audio.prepared_sound import prepare_sound, sound_key, sound_layout

KEYS = GEMMA.with_name("sound_keys.json")


def mel(bins: int) -> MelSpec:
    return MelSpec(bins, 320, 160, 512, 1e-3)


def spec(bins: int) -> SoundSpec:
    return SoundSpec(160, 4, mel(bins), 480_000, ImagePrompt("m", "p", 1, start="(", end=")"))


@pytest.mark.parametrize("bins", [20, 128])
@pytest.mark.parametrize("samples", [480_000, 20_011, 128 * 5, 321, 320, 161])
def test_frames_are_those_of_transformers(bins: int, samples: int) -> None:
    own, given = spec(bins), chirp(samples)
    expected = frames_of_gemma(given, bins).T
    layout = sound_layout(own, samples)
    assert layout["frames"] == len(expected)
    found = magnitude_frames(mel(bins), given, layout["frames"])
    assert found.dtype == np.float32
    assert relative_error(found, expected) < F32
    made = prepare_sound(own, given)
    assert (made.features, made.text) == (-(-len(expected) // 4), f"({'p' * made.features})")
    assert made.rows.row_frames.sum() == len(expected)
    assert np.array_equal(made.rows.frames.reshape(-1, bins)[: len(expected)], found)


def test_the_features_of_all_lengths_are_those_of_the_processor() -> None:
    from transformers import Gemma4Processor

    class Extractor:
        frame_length, hop_length = 320, 160

    processor = Gemma4Processor.__new__(Gemma4Processor)
    processor.feature_extractor, processor.audio_seq_length = Extractor(), 750
    for samples in (*range(161, 2000, 13), 479_999, 480_000):
        expected = processor._compute_audio_num_tokens(np.zeros(samples), 16_000)
        assert sound_layout(spec(128), samples)["features"] == expected, samples


@pytest.mark.parametrize("case", json.loads(KEYS.read_text())["cases"], ids=lambda case: str(case["samples"]))
def test_keys_are_those_of_the_shared_vectors(case: dict[str, Any]) -> None:
    """Which the page computes, too (web/test/audio)."""
    assert sound_key(spec(case["bins"]), sound(case["samples"], 0)) == case["key"]


@pytest.mark.parametrize(
    "case", json.loads(GEMMA.read_text())["cases"], ids=lambda case: f"{case['name']}, {case['bins']}"
)
def test_frames_are_those_of_the_shared_vectors(case: dict[str, Any]) -> None:
    """With which the page is compared (web/test/audio)."""
    own = spec(case["bins"])
    count = sound_layout(own, case["samples"])["frames"]
    frames = magnitude_frames(mel(case["bins"]), sound(case["samples"], case["quiet"]), count).T
    assert abs(float(frames.mean()) - case["mean"]) < 1e-5
    for bin_, frame, value in case["numbers"]:
        assert abs(float(frames[bin_, frame]) - value) < 1e-5
