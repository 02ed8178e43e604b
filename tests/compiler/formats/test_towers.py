"""The towers of checkpoints: files that contradict each other, are missing, or have another layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from vision_families import make_vision

from nearfar.compiler.arch.vision import tower_of
from nearfar.compiler.formats import load
from nearfar.compiler.formats.config import ConfigReader
from nearfar.compiler.formats.towers import decoder_alone, doubled, largest_tile
from nearfar.compiler.measure.model_table import published
from nearfar.compiler.runtime.errors import CheckpointError, UnsupportedModel

WEIGHTS = "model.safetensors"
PATCH = "model.vision_model.embeddings.patch_embedding.weight"


@pytest.fixture(scope="module")
def smolvlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smolvlm")
    make_vision("smolvlm", folder)
    return folder


@pytest.fixture
def changed(smolvlm: Path, tmp_path: Path) -> Callable[..., Path]:
    """The folder with other values in a file's JSON; a name with dots is of a section."""

    def change(file: str, **values: Any) -> Path:
        for path in smolvlm.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        content = json.loads((tmp_path / file).read_text())
        for name, value in values.items():
            *sections, key = name.split("__")
            place = content
            for section in sections:
                place = place[section]
            place[key] = value
        (tmp_path / file).write_text(json.dumps(content))
        return tmp_path

    return change


def test_the_sizes_of_a_tower_are_those_of_its_files(smolvlm: Path) -> None:
    checkpoint = load(str(smolvlm))
    vision, images = checkpoint.spec.vision, checkpoint.images
    assert vision is not None
    assert images is not None
    assert (vision.positions, vision.patch_elements, vision.block, vision.tile_patches) == (36, 3 * 49, 3, 36)
    assert largest_tile(images) == 36
    assert checkpoint.tensors["vision_model.embeddings.patch_embedding.weight"].shape == (36, 3 * 49)
    # No note: nothing is left out.
    assert checkpoint.notes == ()


@pytest.mark.parametrize(
    ("name", "other", "own"),
    [
        (PATCH, PATCH.removeprefix("model."), PATCH.removeprefix("model.")),
        ("model.text_model.norm.weight", "language_model.model.norm.weight", "model.norm.weight"),
    ],
)
def test_two_tensors_with_one_name_are_refused(name: str, other: str, own: str, changed: Callable[..., Path]) -> None:
    folder = changed("config.json")
    tensors = load_file(folder / WEIGHTS)
    save_file({**tensors, other: 2 * tensors[name]}, folder / WEIGHTS, {"format": "pt"})
    with pytest.raises(CheckpointError, match=f"and another one are both {own}, so it is not known which is right"):
        load(str(folder))


def test_the_text_model_alone_is_what_text_only_reads(smolvlm: Path) -> None:
    alone, text = decoder_alone(load(str(smolvlm))), load(str(smolvlm), text_only=True)
    assert (alone.spec, alone.images, alone.tensors.keys()) == (text.spec, None, text.tensors.keys())
    assert text.images is None


@pytest.mark.parametrize(
    ("file", "values", "error", "message"),
    [
        ("config.json", {"vision_config__num_channels": 4}, UnsupportedModel, "'num_channels' is 4"),
        ("config.json", {"vision_config__window": 4}, UnsupportedModel, "vision_config: unknown key 'window' = 4"),
        ("config.json", {"vision_config__num_attention_heads": 5}, CheckpointError, "no multiple of 5 heads"),
        ("config.json", {"vision_config__num_hidden_layers": 900}, CheckpointError, "of the tower is 900, but it has"),
        ("preprocessor_config.json", {"do_resize": False}, UnsupportedModel, "do_resize.*; add --text-only to compile"),
    ],
)
def test_what_a_tower_does_otherwise_is_refused_by_name(
    changed: Callable[..., Path], file: str, values: dict[str, Any], error: type[Exception], message: str
) -> None:
    folder = changed(file, **values)
    with pytest.raises(error, match=message):
        load(str(folder))
    assert load(str(folder), text_only=True).spec.vision is None


# The names and the order of mlx-vlm 0.7.10, whose folders of these models compiled to the bundles of the checkpoints.
OF_MLX = {"model.language_model.": "language_model.model.", "model.text_model.": "language_model."}
QWEN_OF_MLX = {**OF_MLX, "model.visual.": "vision_tower.", "lm_head.": "language_model.lm_head."}
PLUS_ONE = ("layernorm.weight", "model.norm.weight", ".q_norm.weight", ".k_norm.weight")


@pytest.mark.parametrize(
    ("name", "prefixes"), [("smolvlm", {**OF_MLX, "model.": ""}), ("qwen3_vl", QWEN_OF_MLX), ("qwen3_5", QWEN_OF_MLX)]
)
def test_a_folder_of_mlx_vlm_has_the_tensors_and_pictures_of_the_checkpoint(
    name: str, prefixes: dict[str, str], tmp_path: Path
) -> None:
    stored, folder = tmp_path / "stored", tmp_path / "mlx"
    stored.mkdir()
    make_vision(name, stored)
    copytree(stored, folder)
    expected = load(str(stored))
    tensors = {}
    for own, values in load_file(stored / WEIGHTS).items():
        prefix = next((each for each in prefixes if own.startswith(each)), "")
        theirs = prefixes.get(prefix, "") + own.removeprefix(prefix)
        if values.ndim in (4, 5) or own.endswith("conv1d.weight"):
            values = np.moveaxis(values, 1, -1)
        if name == "qwen3_5" and theirs.startswith("language_model.") and theirs.endswith(PLUS_ONE):
            values = values + 1
        tensors[theirs] = np.ascontiguousarray(values)
    save_file(tensors, folder / WEIGHTS, {"format": "mlx"})
    if name.startswith("qwen"):
        # What mlx-vlm writes by itself is not what the model's own file says.
        section = {"image_processor_type": "Qwen3VLImageProcessor", "patch_size": 16, "max_pixels": 1}
        (folder / "processor_config.json").write_text(json.dumps({"image_processor": section}))
    found = load(str(folder))
    assert (found.spec, found.images) == (expected.spec, expected.images)
    assert found.tensors.keys() == expected.tensors.keys()
    for own, tensor in expected.tensors.items():
        rows = tensor.shape[0]
        # A kernel of (C, k, 1) has the order of (C, 1, k).
        values = found.tensors[own].rows(0, rows).reshape(tensor.shape)
        np.testing.assert_allclose(values, tensor.rows(0, rows), 0, 3e-7, err_msg=own)


def test_patches_in_an_unknown_order_are_refused(changed: Callable[..., Path]) -> None:
    folder = changed("config.json")
    tensors = load_file(folder / WEIGHTS)
    tensors[PATCH] = np.ascontiguousarray(tensors[PATCH].transpose(0, 2, 1, 3))
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"patch_embedding.weight has shape \[36, 7, 3, 7\], which is not"):
        load(str(folder))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_kv_shared_layers": 2}, "'num_kv_shared_layers' is 2, .* add --text-only to compile"),
        (
            {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 500},
            "'hidden_size_per_layer_input' is 8, .* add --text-only to compile",
        ),
    ],
)
def test_text_models_to_which_a_tower_is_not_joined_are_refused_by_name(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_vision("gemma4_unified", tmp_path)
    *_, note = load(str(tmp_path)).notes
    assert note == "the text model and its tower are compiled; left out: embed_audio (1 tensor)"
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["text_config"] |= values
    path.write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match=message):
        load(str(tmp_path))


def test_a_bound_without_its_other_is_refused_and_infinite_ones_become_numbers(tmp_path: Path) -> None:
    make_vision("gemma4_bounded", tmp_path)
    module = "vision_tower.encoder.layers.0.self_attn.o_proj.output"
    low, high = load(str(tmp_path)).tensors[f"{module}_bounds"].rows(0, 2)
    assert -1.3 <= low <= -0.3
    assert high == np.finfo(np.float32).max
    tensors = load_file(tmp_path / WEIGHTS)
    del tensors[f"model.{module}_max"]
    save_file(tensors, tmp_path / WEIGHTS, {"format": "pt"})
    with pytest.raises(CheckpointError, match=f"tensor {module}_max is missing, but the other bound is there"):
        load(str(tmp_path))


def test_the_token_of_a_picture_has_the_row_of_the_pad_token_in_tables_of_layers(tmp_path: Path) -> None:
    make_vision("gemma4_bounded", tmp_path)
    with_tower, text = load(str(tmp_path)), load(str(tmp_path), text_only=True)
    assert with_tower.images is not None
    token = with_tower.images.prompt.placeholder_id
    table, stored = (each.tensors["model.embed_tokens_per_layer.weight"] for each in (with_tower, text))
    expected = stored.rows(0, stored.shape[0]).copy()
    expected[token] = expected[3]
    np.testing.assert_array_equal(table.rows(0, token), expected[:token])
    np.testing.assert_array_equal(table.rows(token - 2, token + 2), expected[token - 2 : token + 2])


def test_pictures_for_gemma_4_are_prepared_as_its_tower_begins(tmp_path: Path) -> None:
    make_vision("gemma4", tmp_path)
    images = load(str(tmp_path)).images
    assert images is not None
    for mean, std, expected in ((None, None, (0.5, 0.5)), ((0.2,) * 3, (0.4,) * 3, (0.4, 0.2))):
        found = doubled(replace(images, mean=mean, std=std))
        assert found.mean == pytest.approx((expected[0],) * 3)
        assert found.std == pytest.approx((expected[1],) * 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attention_bias": True}, "'attention_bias' is true"),
        ({"num_key_value_heads": 1}, "'num_key_value_heads' must be 'num_attention_heads', which is 3"),
        ({"head_dim": 24}, "3 heads of 'head_dim', a multiple of 4, must fill 'hidden_size', which is 36"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}, "'rope_theta' is 50"),
    ],
)
def test_what_the_tower_of_gemma_4_does_otherwise_is_refused_by_name(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_vision("gemma4", tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["vision_config"] |= values
    path.write_text(json.dumps(config))
    with pytest.raises((CheckpointError, UnsupportedModel), match=message):
        load(str(tmp_path))


def test_the_published_towers_of_gemma_4_are_read(tmp_path: Path) -> None:
    """With the keys that transformers wrote into them."""
    common = {
        "_name_or_path": "", "architectures": None, "attention_bias": False, "attention_dropout": 0.0,
        "chunk_size_feed_forward": 0, "default_output_length": 280, "dtype": "bfloat16", "id2label": {"0": "LABEL_0"},
        "hidden_activation": "gelu_pytorch_tanh", "initializer_range": 0.02, "is_encoder_decoder": False,
        "label2id": {"LABEL_0": 0}, "max_position_embeddings": 131072, "model_type": "gemma4_vision",
        "output_attentions": False, "output_hidden_states": False, "patch_size": 16, "pooling_kernel_size": 3,
        "position_embedding_size": 10240, "problem_type": None, "return_dict": True, "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"},
    }  # fmt: skip
    large = {"head_dim": 72, "global_head_dim": 72, "hidden_size": 1152, "intermediate_size": 4304}
    large |= {"num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": 27, "standardize": True}
    small = {"head_dim": 64, "global_head_dim": 64, "use_clipped_linears": True, "standardize": False}
    expected = {
        "26b-a4b": ({**large, "use_clipped_linears": False}, (27, 1152, "windows", False, True)),
        "e2b": (small, (16, 768, "none", True, False)),
    }
    for size, (own, found) in expected.items():
        values = json.loads(dict(published())[f"gemma-4-{size}-it"].read_text())
        values["vision_config"] = {**common, **own}
        spec = tower_of("gemma4").read_config(ConfigReader(values, str(tmp_path)))
        assert (spec.num_layers, spec.hidden_size, spec.both_ways, spec.bounded, spec.projector_norm) == found
        assert spec.positions == 2 * 10240
