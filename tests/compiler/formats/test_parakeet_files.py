"""A folder of Parakeet CTC: what is missing, damaged or of another kind is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_parakeet import BLANK, make_parakeet

from nearfar.compiler.formats.huggingface import open_checkpoint
from nearfar.compiler.runtime.errors import CheckpointError, UnsupportedModel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parakeet")
    make_parakeet(path)
    return path


def changed(path: Path, **values: Any) -> None:
    """Change keys of config.json; those of the encoder's section have names with a dot."""
    config = json.loads((path / "config.json").read_text())
    for name, value in values.items():
        own = config["encoder_config"] if name.startswith("encoder_config.") else config
        own[name.removeprefix("encoder_config.")] = value
    (path / "config.json").write_text(json.dumps(config))


def test_a_checkpoint_has_its_blank_and_windows_of_30_seconds(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert checkpoint.ctc is not None
    assert (checkpoint.ctc.blank, checkpoint.ctc.features) == (BLANK, "parakeet")
    assert checkpoint.spec.max_position_embeddings == 375


def test_batch_norm_is_folded_into_the_convolution(folder: Path) -> None:
    """Compared with the definition, in float64."""
    stored, conv = load_file(folder / "model.safetensors"), "encoder.layers.1.conv"
    weight, bias, mean, variance = (
        stored[f"{conv}.norm.{part}"].astype(np.float64) for part in ("weight", "bias", "running_mean", "running_var")
    )
    factor = weight / np.sqrt(variance + 1e-5)
    tensors = open_checkpoint(folder).tensors
    filters = tensors[f"{conv}.depthwise_conv.weight"].rows(0, 5 * 36).reshape(5, 36)
    assert np.allclose(filters, stored[f"{conv}.depthwise_conv.weight"][:, 0].T * factor, atol=1e-6)
    expected = (stored[f"{conv}.depthwise_conv.bias"] - mean) * factor + bias
    assert np.allclose(tensors[f"{conv}.depthwise_conv.bias"].rows(0, 36), expected, atol=1e-6)
    assert not [name for name in tensors if "running" in name or "bias_u" in name or "num_batches" in name]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"encoder_config.subsampling_factor": 4}, "'subsampling_factor' is 4"),
        ({"encoder_config.subsampling_conv_kernel_size": 5}, "'subsampling_conv_kernel_size' is 5"),
        ({"encoder_config.conv_kernel_size": 4}, "'conv_kernel_size' is 4; supported: odd numbers"),
        ({"encoder_config.num_mel_bins": 20}, "'num_mel_bins' is 20; supported: multiples of 8"),
        (
            {"encoder_config.num_attention_heads": 5, "encoder_config.num_key_value_heads": 5},
            "heads of 36 / 5 elements",
        ),
        ({"encoder_config.model_type": "conformer"}, "'model_type' is 'conformer'"),
        ({"encoder_config.rotary": True}, "'rotary'"),
        ({"encoder_config": None}, "'encoder_config' is missing"),
    ],
)
def test_another_encoder_is_refused(folder: Path, tmp_path: Path, values: dict[str, Any], message: str) -> None:
    path = shutil.copytree(folder, tmp_path / "other")
    changed(path, **values)
    with pytest.raises(UnsupportedModel, match=message.replace("(", r"\(")):
        open_checkpoint(path)


def test_frames_of_another_kind_are_refused(folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(folder, tmp_path / "other")
    file = path / "preprocessor_config.json"
    given = json.loads(file.read_text())
    for key, value in (("n_fft", 400), ("preemphasis", 0.9), ("feature_size", 80), ("dither", 1e-5)):
        file.write_text(json.dumps({**given, key: value}))
        with pytest.raises(UnsupportedModel, match=key):
            open_checkpoint(path)
    file.unlink()
    assert open_checkpoint(path).ctc is not None


def test_a_blank_outside_of_the_vocabulary_is_refused(folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(folder, tmp_path / "other")
    changed(path, pad_token_id=1024)
    with pytest.raises(CheckpointError, match="'pad_token_id' is 1024, outside of the vocabulary"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    "name",
    [
        "ctc_head.weight",
        "encoder.subsampling.layers.3.weight",
        "encoder.subsampling.linear.bias",
        "encoder.layers.1.conv.norm.running_var",
        "encoder.layers.0.self_attn.bias_v",
        "encoder.layers.0.self_attn.relative_k_proj.weight",
    ],
)
def test_a_tensor_that_is_missing_or_has_another_shape_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    path = shutil.copytree(folder, tmp_path / "other")
    tensors = load_file(path / "model.safetensors")
    save_file({**tensors, name: tensors[name][..., None].copy()}, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"tensor {name} has the shape"):
        open_checkpoint(path)
    del tensors[name]
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"tensor {name} is missing"):
        open_checkpoint(path)
