"""transformers' own extractor of the frames that Whisper reads.

``python tests/sound_oracle.py`` writes `tests/conformance/log_mel.json`, and of the frames that Parakeet and Gemma 4
read, `parakeet_frames.json` and `magnitude_frames.json`, with which both languages are compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sounds import pattern

from nearfar.compiler.runtime.batch import FloatArray

VECTORS = Path(__file__).parent / "conformance/log_mel.json"
PARAKEET, GEMMA = VECTORS.with_name("parakeet_frames.json"), VECTORS.with_name("magnitude_frames.json")
# The samples of each sound, and how many of the first ones are a thousandth as loud.
SOUNDS = {"window": (480_000, 0), "quiet, then loud": (33_333, 20_000), "few": (1_777, 0), "a frame": (201, 0)}
# The places of which the numbers are stored, for each sound.
PLACES = 40
Extract = Callable[[FloatArray, int], FloatArray]


def sound(samples: int, quiet: int) -> FloatArray:
    found = pattern(samples)
    found[:quiet] *= np.float32(0.001)
    return found


def frames_of_transformers(samples: FloatArray, bins: int) -> FloatArray:
    """The frames (bins, N // 160), computed in float64."""
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(feature_size=bins)
    frames: FloatArray = extractor._np_extract_fbank_features(samples[None].astype(np.float64), "cpu")[0]
    return frames


def frames_of_parakeet(samples: FloatArray, bins: int) -> FloatArray:
    """The frames (bins, N // 160) as float32."""
    from transformers import ParakeetFeatureExtractor

    found = ParakeetFeatureExtractor(feature_size=bins)(samples, sampling_rate=16000, return_tensors="np")
    frames: FloatArray = found["input_features"][0][: int(found["attention_mask"].sum())].T
    return frames


def frames_of_gemma(samples: FloatArray, bins: int) -> FloatArray:
    """The frames (bins, N') as float32."""
    from transformers import Gemma4AudioFeatureExtractor

    # float32 samples have spectra of float32.
    found = Gemma4AudioFeatureExtractor(feature_size=bins)([samples.astype(np.float64)], return_tensors="np")
    frames: FloatArray = found["input_features"][0][found["input_features_mask"][0]].T
    return frames


def case(name: str, bins: int, extract: Extract = frames_of_transformers) -> dict[str, Any]:
    samples, quiet = SOUNDS[name]
    frames = extract(sound(samples, quiet), bins)
    generator = np.random.default_rng(5)
    places = {(int(generator.integers(bins)), int(generator.integers(frames.shape[1]))) for _ in range(PLACES)}
    numbers = [[*place, round(float(frames[place]), 7)] for place in sorted(places)]
    mean = round(float(frames.astype(np.float64).mean()), 7)
    return {"name": name, "samples": samples, "quiet": quiet, "bins": bins, "mean": mean, "numbers": numbers}


def main() -> None:
    cases = [case(name, bins) for name in SOUNDS for bins in (80, 128)]
    VECTORS.write_text(json.dumps({"cases": cases}) + "\n")
    cases = [case(name, bins, frames_of_parakeet) for name in list(SOUNDS)[:3] for bins in (80, 128)]
    PARAKEET.write_text(json.dumps({"cases": cases}) + "\n")
    cases = [case(name, bins, frames_of_gemma) for name in SOUNDS for bins in (20, 128)]
    GEMMA.write_text(json.dumps({"cases": cases}) + "\n")


if __name__ == "__main__":
    main()
