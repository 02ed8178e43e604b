"""The towers of checkpoints: files that contradict each other, are missing, or have another layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from vision_families import make_vision

from nearfar.compiler.formats import load
from nearfar.compiler.formats.towers import decoder_alone, doubled, largest_tile, sees_no_pictures
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


def test_patches_in_the_order_of_mlx_are_refused(changed: Callable[..., Path]) -> None:
    folder = changed("config.json")
    tensors = load_file(folder / WEIGHTS)
    tensors[PATCH] = np.ascontiguousarray(tensors[PATCH].transpose(0, 2, 3, 1))
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"patch_embedding.weight has shape \[36, 7, 7, 3\], which is not"):
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
    (note,) = load(str(tmp_path)).notes
    assert note == "the text model and its tower are compiled; left out: embed_audio (1 tensor)"
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["text_config"] |= values
    path.write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match=message):
        load(str(tmp_path))


def test_gemma_4_with_bounds_of_projections_reads_text_alone_and_a_note_says_so(tmp_path: Path) -> None:
    make_vision("gemma4", tmp_path)
    assert load(str(tmp_path)).notes == ()
    text = load(str(tmp_path), text_only=True)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["vision_config"]["use_clipped_linears"] = True
    path.write_text(json.dumps(config))
    checkpoint = load(str(tmp_path))
    assert (checkpoint.spec, checkpoint.images, checkpoint.tensors.keys()) == (text.spec, None, text.tensors.keys())
    tower, left_out = checkpoint.notes
    assert "'use_clipped_linears' of 'vision_config' is true, which is not supported in the tower" in tower
    assert left_out.startswith("only the text model is compiled; left out: embed_vision (1 tensor), vision_tower (")


def test_gemma_4_with_a_table_for_each_layer_reads_text_alone() -> None:
    for text in ({}, {"hidden_size_per_layer_input": 256}):
        assert "'hidden_size_per_layer_input' of 'text_config' is 256" in sees_no_pictures({"text_config": text})
    assert sees_no_pictures({"text_config": {"hidden_size_per_layer_input": 0}}) == ""


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
