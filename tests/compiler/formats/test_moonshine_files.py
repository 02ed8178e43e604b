"""Moonshine's folders: what is read, and what is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny_moonshine import PREPROCESSOR, make_moonshine, make_moonshine_streaming

from nearfar.compiler.formats.convolutions import ConvolutionMatrix
from nearfar.compiler.formats.huggingface import open_checkpoint, read_spec
from nearfar.compiler.formats.moonshine_files import HIDDEN, window_biases
from nearfar.compiler.ir.speech import SpeechSpec
from nearfar.compiler.runtime.errors import CheckpointError, NearfarError, UnsupportedModel

# The keys as transformers 4 wrote them, with the sizes of transformers' defaults; not compared with a published file.
RELEASED = {
    "architectures": ["MoonshineForConditionalGeneration"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "decoder_hidden_act": "silu",
    "decoder_num_attention_heads": 8,
    "decoder_num_hidden_layers": 6,
    "decoder_num_key_value_heads": 8,
    "decoder_start_token_id": 1,
    "encoder_hidden_act": "gelu",
    "encoder_num_attention_heads": 8,
    "encoder_num_hidden_layers": 6,
    "encoder_num_key_value_heads": 8,
    "eos_token_id": 2,
    "hidden_size": 288,
    "initializer_range": 0.02,
    "intermediate_size": 1152,
    "is_encoder_decoder": True,
    "max_position_embeddings": 194,
    "model_type": "moonshine",
    "pad_head_dim_to_multiple_of": 8,
    "partial_rotary_factor": 0.9,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
    "use_cache": True,
    "vocab_size": 32768,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("moonshine")
    make_moonshine(path)
    return path


def changed(folder: Path, path: Path, file: str, **values: object) -> Path:
    """A copy of the folder with other values in a file; None removes a key."""
    shutil.copytree(folder, path)
    content = {**json.loads((path / file).read_text()), **values}
    (path / file).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    return path


def test_a_configuration_of_transformers_4_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(RELEASED))
    spec = read_spec(tmp_path / "config.json")
    audio = spec.audio
    assert audio is not None
    assert (spec.head_dim, spec.rope.rotary_dim, spec.max_position_embeddings) == (36, 32, 194)
    # Half a minute has 1,248 rows, and the last frames are in two more.
    assert (audio.positions, audio.rows_behind, audio.row_elements, audio.head_dim) == (1250, 2, 448, 36)


def test_tokens_and_the_longest_window_are_read(folder: Path) -> None:
    assert open_checkpoint(folder).speech == SpeechSpec(start=1, no_timestamps=None, no_speech=None, seconds=30)


def test_a_folder_as_transformers_5_writes_it_is_read(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "five"
    shutil.copytree(folder, path)
    (path / "preprocessor_config.json").unlink()
    (path / "processor_config.json").write_text(json.dumps({"feature_extractor": PREPROCESSOR}))
    assert open_checkpoint(path).speech is not None
    (path / "processor_config.json").write_text(json.dumps({"feature_extractor": {**PREPROCESSOR, "feature_size": 2}}))
    with pytest.raises(UnsupportedModel, match="feature_size"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("file", "values", "error", "message"),
    [
        ("config.json", {"encoder_num_attention_heads": 4}, UnsupportedModel, "encoder_num_attention_heads"),
        ("config.json", {"decoder_num_key_value_heads": 1}, UnsupportedModel, "decoder_num_key_value_heads"),
        ("config.json", {"attention_bias": True}, UnsupportedModel, "attention_bias"),
        ("config.json", {"encoder_hidden_act": "silu"}, UnsupportedModel, "encoder_hidden_act"),
        ("config.json", {"decoder_start_token_id": 97}, CheckpointError, "outside of the vocabulary of 97"),
        ("config.json", {"window": 3}, UnsupportedModel, "window"),
        ("preprocessor_config.json", {"do_normalize": None}, UnsupportedModel, "'do_normalize' is true, or absent"),
        ("preprocessor_config.json", {"sampling_rate": 8000}, UnsupportedModel, "sampling_rate"),
    ],
)
def test_what_needs_other_mathematics_is_refused(
    folder: Path, tmp_path: Path, file: str, values: dict[str, object], error: type[NearfarError], message: str
) -> None:
    with pytest.raises(error, match=message):
        open_checkpoint(changed(folder, tmp_path / "changed", file, **values))


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"frame_ms": 10.0}, UnsupportedModel, "frame_ms"),
        ({"num_key_value_heads": 1}, UnsupportedModel, "num_key_value_heads"),
        ({"sliding_windows": [[5, 3], [6, 0]]}, CheckpointError, "one row back or more for each of 3 layers"),
        ({"sliding_windows": [[5, 3], [6, 0], [0, 2]]}, CheckpointError, "one row back or more for each of 3 layers"),
        ({"sliding_windows": [5, 6, 7]}, CheckpointError, "a list of pairs of integers"),
        ({"shift": 3}, UnsupportedModel, "shift"),
    ],
)
def test_an_encoder_of_frames_that_needs_other_mathematics_is_refused(
    tmp_path: Path, values: dict[str, object], error: type[NearfarError], message: str
) -> None:
    make_moonshine_streaming(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "encoder_config": {**config["encoder_config"], **values}})
    )
    with pytest.raises(error, match=message):
        open_checkpoint(tmp_path)


def test_the_longest_window_of_frames_has_positions(tmp_path: Path) -> None:
    make_moonshine_streaming(tmp_path, max_position_embeddings=1499)
    with pytest.raises(UnsupportedModel, match="fewer than the 1500 rows of 30 s"):
        open_checkpoint(tmp_path)


def test_biases_hide_what_is_outside_of_a_window() -> None:
    one = window_biases(2, 4, 3, 2)
    # Of the distances -3 to 3 of each head: two rows back, the row itself, and one ahead.
    assert one.tolist() == 2 * [HIDDEN, 0, 0, 0, 0, HIDDEN, HIDDEN]
    assert window_biases(1, 3, 2, 0).tolist() == [HIDDEN, 0, 0, HIDDEN, HIDDEN]


class Filters:
    """Stored filters (outputs, inputs, size)."""

    name, dtype = "conv", "F32"

    def __init__(self, values: np.ndarray) -> None:
        self._values, self.shape = values, values.shape

    def rows(self, start: int, stop: int) -> np.ndarray:
        return self._values[start:stop]


def test_a_matrix_has_a_filter_at_each_place_of_its_stride() -> None:
    filters = np.arange(1, 13, dtype=np.float32).reshape(2, 2, 3)
    matrix = ConvolutionMatrix(Filters(filters), 2, 2, 11)
    assert matrix.shape == (4, 11)
    one, other = (each.T.reshape(-1) for each in filters)
    expected = np.zeros((4, 11), np.float32)
    expected[0, :6], expected[1, :6] = one, other
    expected[2, 4:10], expected[3, 4:10] = one, other
    assert np.array_equal(matrix.rows(0, 4), expected)
    assert np.array_equal(matrix.rows(1, 3), expected[1:3])
