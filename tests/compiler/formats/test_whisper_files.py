"""A folder of Whisper: the files of released models, and what is refused by name."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_whisper import LANGUAGES, NO_SPEECH, NO_TIMESTAMPS, PREVIOUS, ROWS, START, TRANSCRIBE, TRANSLATE, make_whisper

from nearfar.compiler.formats import load
from nearfar.compiler.formats.huggingface import read_spec
from nearfar.compiler.ir.spec import AudioSpec
from nearfar.compiler.ir.speech import LanguageToken
from nearfar.compiler.measure.shapes import shape_checkpoint
from nearfar.compiler.pipeline.compile import compile_any
from nearfar.compiler.pipeline.options import CompileOptions
from nearfar.compiler.runtime.errors import CheckpointError, NearfarError, RequestError, UnsupportedModel

# That of whisper-tiny as it was released, of whose lists only the first elements are here.
RELEASED: dict[str, Any] = {
    "_name_or_path": "openai/whisper-tiny",
    "activation_dropout": 0.0,
    "activation_function": "gelu",
    "apply_spec_augment": False,
    "architectures": ["WhisperForConditionalGeneration"],
    "attention_dropout": 0.0,
    "begin_suppress_tokens": [220, 50257],
    "bos_token_id": 50257,
    "classifier_proj_size": 256,
    "d_model": 384,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 1536,
    "decoder_layerdrop": 0.0,
    "decoder_layers": 4,
    "decoder_start_token_id": 50258,
    "dropout": 0.0,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "encoder_layerdrop": 0.0,
    "encoder_layers": 4,
    "eos_token_id": 50257,
    "forced_decoder_ids": [[1, 50259], [2, 50359], [3, 50363]],
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "mask_feature_length": 10,
    "mask_feature_min_masks": 0,
    "mask_feature_prob": 0.0,
    "mask_time_length": 10,
    "mask_time_min_masks": 2,
    "mask_time_prob": 0.05,
    "max_length": 448,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "median_filter_width": 7,
    "model_type": "whisper",
    "num_hidden_layers": 4,
    "num_mel_bins": 80,
    "pad_token_id": 50257,
    "scale_embedding": False,
    "suppress_tokens": [1, 2, 7],
    "torch_dtype": "float32",
    "transformers_version": "4.36.0.dev0",
    "use_cache": True,
    "use_weighted_layer_sum": False,
    "vocab_size": 51865,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whisper")
    make_whisper(folder)
    return folder


@pytest.fixture
def changed(saved: Path, tmp_path: Path) -> Callable[..., Path]:
    """changed(file, key=value) -> a copy of the folder with other values in a file; None removes a key."""

    def change(name: str, **values: Any) -> Path:
        folder = tmp_path / "changed"
        if not folder.exists():
            shutil.copytree(saved, folder)
        content = json.loads((folder / name).read_text())
        content |= values
        (folder / name).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
        return folder

    return change


def test_a_released_configuration_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(RELEASED))
    spec = read_spec(tmp_path / "config.json")
    assert spec.audio == AudioSpec(80, 400, 160, 2, 320, 1500, 384, 4, 6, 64, 1536)
    assert (spec.num_heads, spec.head_dim, spec.max_position_embeddings, spec.embedding_scale) == (6, 64, 448, 1.0)
    assert (spec.tie_word_embeddings, spec.activation, spec.eos_token_ids) == (True, "gelu", (50257,))


def test_tokens_are_those_of_generation_config(saved: Path) -> None:
    speech = load(str(saved)).speech
    assert speech is not None
    assert {f"<|{each.code}|>": each.token for each in speech.languages} == LANGUAGES
    assert (speech.start, speech.transcribe, speech.translate, speech.previous) == (
        START,
        TRANSCRIBE,
        TRANSLATE,
        PREVIOUS,
    )
    assert (speech.no_timestamps, speech.no_speech, speech.seconds) == (NO_TIMESTAMPS, NO_SPEECH, 1)
    assert (speech.max_initial_timestamp, speech.suppressed_first) == (20, (3, 40))


def test_a_model_of_one_language_needs_no_tasks(changed: Callable[..., Path]) -> None:
    folder = changed("generation_config.json", lang_to_id=None, task_to_id=None, prev_sot_token_id=None)
    speech = load(str(folder)).speech
    assert speech is not None
    assert (speech.languages, speech.transcribe, speech.previous) == ((), None, None)
    speech = load(str(changed("generation_config.json", is_multilingual=False))).speech
    assert speech is not None
    assert speech.languages == (LanguageToken("en", None),)


def test_keys_have_no_bias_and_convolutions_are_matrices(saved: Path) -> None:
    tensors = load(str(saved)).tensors
    bias = tensors["model.layers.0.encoder_attn.k_proj.bias"]
    assert not bias.rows(0, bias.shape[0]).any()
    first, second = tensors["model.encoder.conv1.matrix"], tensors["model.encoder.conv2.matrix"]
    assert (first.shape, second.shape) == ((120, 80), (60, 180))
    rows = first.rows(0, 120)
    # The second half of the rows reads the frames one further on.
    assert np.array_equal(rows[:60, :60], rows[60:, 20:])
    assert not rows[:60, 60:].any()
    assert np.array_equal(first.rows(59, 62), rows[59:62])


@pytest.mark.parametrize(
    ("file", "values", "error", "message"),
    [
        ("config.json", {"architectures": ["WhisperForAudioClassification"]}, UnsupportedModel, "'architectures' is"),
        ("config.json", {"decoder_attention_heads": 12}, UnsupportedModel, "heads of 60 / 12 elements"),
        ("config.json", {"num_hidden_layers": 3}, UnsupportedModel, "'num_hidden_layers' is 3"),
        ("config.json", {"rope_theta": 3.0}, UnsupportedModel, "unknown key 'rope_theta'"),
        ("config.json", {"max_source_positions": 51}, CheckpointError, "has 1.02 seconds; expected whole ones"),
        (
            "generation_config.json",
            {"no_timestamps_token_id": None},
            CheckpointError,
            "'no_timestamps_token_id' is missing",
        ),
        ("generation_config.json", {"no_timestamps_token_id": 60}, CheckpointError, "needs token 111, outside"),
        ("generation_config.json", {"lang_to_id": {"en": 42}}, CheckpointError, "expected a token such as '<|en|>'"),
        ("generation_config.json", {"lang_to_id": {"<|en|>": 4200}}, CheckpointError, "needs token 4200"),
        ("generation_config.json", {"task_to_id": {"translate": 45}}, CheckpointError, "lacks 'transcribe'"),
        ("preprocessor_config.json", {"feature_size": 80}, UnsupportedModel, "'feature_size' is 80"),
        ("preprocessor_config.json", {"hop_length": 80}, UnsupportedModel, "'hop_length' is 80"),
        ("preprocessor_config.json", {"chunk_length": 30}, UnsupportedModel, "'chunk_length' is 30"),
        ("preprocessor_config.json", {"dither": 0.1}, UnsupportedModel, "'dither' is 0.1"),
        ("preprocessor_config.json", {"preemphasis": 0.97}, UnsupportedModel, "unknown key 'preemphasis'"),
    ],
)
def test_what_is_not_known_is_refused(
    changed: Callable[..., Path], file: str, values: dict[str, Any], error: type[NearfarError], message: str
) -> None:
    with pytest.raises(error) as caught:
        load(str(changed(file, **values)))
    assert message in caught.value.message


def test_frames_may_be_described_in_the_processor_s_file(changed: Callable[..., Path]) -> None:
    folder = changed("config.json")
    section = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").unlink()
    speech = load(str(folder)).speech
    assert speech is not None
    assert speech.seconds * 50 == ROWS
    (folder / "processor_config.json").write_text(json.dumps({"feature_extractor": {**section, "n_fft": 512}}))
    with pytest.raises(UnsupportedModel, match="'n_fft' is 512"):
        load(str(folder))


def test_a_missing_generation_config_and_other_targets_are_refused(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    (folder / "generation_config.json").unlink()
    with pytest.raises(CheckpointError, match="names the tokens of languages and tasks"):
        load(str(folder))
    with pytest.raises(UnsupportedModel, match="has feed-forwards of 84 and 100 elements instead of 240, which"):
        compile_any(str(saved), tmp_path / "out", CompileOptions(target="mlx"))
    with pytest.raises(RequestError, match="--lora-rank 4: not supported for whisper"):
        compile_any(str(saved), tmp_path / "out", CompileOptions(target="cpu", lora_rank=4))
    with pytest.raises(RequestError, match=r"--task embed: .* transcribes sound"):
        compile_any(str(saved), tmp_path / "out", CompileOptions(target="cpu", task="embed"))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        # whisper-large-v3-turbo.
        {
            "d_model": 1280,
            "decoder_attention_heads": 20,
            "decoder_ffn_dim": 5120,
            "encoder_attention_heads": 20,
            "encoder_ffn_dim": 5120,
            "encoder_layers": 32,
            "num_hidden_layers": 32,
            "num_mel_bins": 128,
            "vocab_size": 51866,
        },
    ],
)
def test_both_graphs_have_the_parameters_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    """Of a config.json alone. Zeros as biases of keys, and rows of the first convolution, are there besides."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    (tmp_path / "config.json").write_text(json.dumps({**RELEASED, **changes}))
    spec = read_spec(tmp_path / "config.json")
    tensors = shape_checkpoint(tmp_path / "config.json", spec).tensors
    assert spec.audio is not None
    added = spec.hidden_size * (spec.audio.num_layers + 2 * spec.num_layers)
    added += spec.hidden_size * (2 * 4 - 3) * spec.audio.mel_bins
    with torch.device("meta"):
        model = WhisperForConditionalGeneration(WhisperConfig(**{**RELEASED, **changes}))
    expected = {id(each): each.numel() for each in model.parameters()}
    assert sum(math.prod(each.shape) for each in tensors.values()) - added == sum(expected.values())
