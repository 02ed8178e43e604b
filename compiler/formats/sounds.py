"""Reads how the sound of a model that hears is prepared: the feature extractor's settings in `processor_config.json` or
`preprocessor_config.json`, and what config.json and the tokenizer say about them. The rules are those of transformers'
processors; what `SoundSpec` does not have is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..arch.hearing.gemma4 import FRAMES_OF_ROW
from ..ir.images import ImagePrompt
from ..ir.sounds import MelSpec, SoundSpec
from ..ir.spec import HearingSpec
from ..ir.speech import SAMPLE_RATE
from ..runtime.text.tokenizer import Tokenizer
from .config import ConfigReader
from .images import PREPROCESSOR_FILE, PROCESSOR_FILE, ProcessorFiles, processor_values
from .json_file import read_json_object

# Keys that change nothing for a single sound of 16 kHz.
HARMLESS = (
    "auto_map", "device", "padding_side", "padding_value", "processor_class", "return_attention_mask", "return_tensors",
)  # fmt: skip
SECTION, CLASS = "feature_extractor", "feature_extractor_type"
# transformers' own defaults: the most features of a sound, and the most samples of one for log-mel frames.
MOST_FEATURES, MOST_SAMPLES = 750, 480_000


def sound_values(path: Path) -> tuple[Mapping[str, Any], str] | None:
    """The settings of a feature extractor, and where they are; None if no file has them."""
    section = processor_values(path).get(SECTION)
    if isinstance(section, dict):
        return section, f"{path / PROCESSOR_FILE}: {SECTION}"
    file = path / PREPROCESSOR_FILE
    values = read_json_object(file) if file.is_file() else {}
    return (values, str(file)) if CLASS in values else None


def read_sounds(path: Path, values: Mapping[str, Any], tokenizer: Tokenizer, hearing: HearingSpec) -> SoundSpec:
    """How the sound of the model in a folder is prepared; ``values`` are those of its config.json.

    Raises CheckpointError for missing and contradictory files, UnsupportedModel for rules that are not known.
    """
    config = ConfigReader(values, str(path / "config.json"))
    found = sound_values(path)
    assert found is not None, "read_tower leaves out ears without these"
    own, where = found
    if where.endswith(PREPROCESSOR_FILE):
        # The file has the settings of pictures, too.
        own = {key: value for key, value in own.items() if not key.startswith(("image_", "do_"))}
    processor = ConfigReader(own, where)
    read, extractor = READERS[hearing.model_type]
    processor.expect(CLASS, extractor)
    processor.expect("sampling_rate", SAMPLE_RATE)
    files = ProcessorFiles(path, processor, config, config.section("audio_config") or ConfigReader({}), tokenizer)
    placeholder, placeholder_id = files.placeholder(("audio_token_id",), "audio_token", "<|audio|>")
    prompt = ImagePrompt(
        placeholder,
        placeholder,
        placeholder_id,
        start=files.token("boa_token", "<|audio>"),
        end=files.token("eoa_token", "<audio|>"),
    )
    spec = read(files, hearing, prompt)
    processor.ignore(*HARMLESS)
    processor.finish()
    return spec


def _samples(files: ProcessorFiles, hearing: HearingSpec, prompt: ImagePrompt) -> SoundSpec:
    """Gemma 4 12B."""
    size = files.processor.integer("audio_samples_per_token", default=640)
    files.agree("audio_samples_per_token", size, "audio_embed_dim", hearing.row_elements)
    files.agree("feature_size", files.processor.integer("feature_size", default=size), "audio_embed_dim", size)
    said = processor_values(files.path).get("audio_seq_length")
    most = said if type(said) is int and said > 0 else MOST_FEATURES
    return SoundSpec(size, 1, None, most * size, prompt)


def _log_mel(files: ProcessorFiles, hearing: HearingSpec, prompt: ImagePrompt) -> SoundSpec:
    """Gemma 4 E2B and E4B."""
    processor = files.processor
    for key, value in {
        "min_frequency": 0.0, "max_frequency": SAMPLE_RATE / 2, "preemphasis": 0.0, "fft_overdrive": False,
        "dither": 0.0, "input_scale_factor": 1.0, "per_bin_mean": None, "per_bin_stddev": None,
    }.items():  # fmt: skip
        processor.expect(key, value)
    processor.ignore("preemphasis_htk_flavor", "frame_length_ms", "hop_length_ms")
    window, hop = processor.integer("frame_length", default=320), processor.integer("hop_length", default=160)
    points = processor.integer("fft_length", default=512)
    bins = processor.integer("feature_size", default=128)
    if points != 1 << (window - 1).bit_length() or window % 2:
        raise processor.contradiction("fft_length", f"'fft_length' is {points}, for frames of {window} samples")
    if FRAMES_OF_ROW * bins != hearing.row_elements:
        raise processor.contradiction("feature_size", f"'feature_size' is {bins}, but the tower reads other frames")
    floor = processor.number("mel_floor", default=1e-3)
    return SoundSpec(hop, FRAMES_OF_ROW, MelSpec(bins, window, hop, points, floor), MOST_SAMPLES, prompt)


# By model_type: its reader, and transformers' class of its feature extractor.
READERS: dict[str, tuple[Callable[[ProcessorFiles, HearingSpec, ImagePrompt], SoundSpec], str]] = {
    "gemma4": (_log_mel, "Gemma4AudioFeatureExtractor"),
    "gemma4_unified": (_samples, "Gemma4UnifiedAudioFeatureExtractor"),
}
