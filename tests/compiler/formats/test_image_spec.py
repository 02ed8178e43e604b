"""Reading how pictures are prepared: what is not known is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from image_families import FAMILIES, spec_of, write_family

from nearfar.compiler.ir.images import TileGrid
from nearfar.compiler.runtime.errors import CheckpointError, UnsupportedModel

# Family, its settings that change, and what the message names.
UNSUPPORTED: list[tuple[str, dict[str, Any], str]] = [
    ("idefics3", {"resample": 0}, r"'resample' is 0.*1 \(lanczos\)"),
    ("idefics3", {"do_image_splitting": False}, "'do_image_splitting' is false"),
    ("idefics3", {"do_pad": False}, "'do_pad' is false"),
    ("idefics3", {"do_resize": False}, "'do_resize' is false"),
    ("idefics3", {"image_mean": [0.0, 0.0, 0.0]}, "'image_mean' must be 0.5"),
    ("idefics3", {"do_normalize": False}, "'image_mean' must be 0.5"),
    ("idefics3", {"size": {"longest_edge": 2048, "shortest_edge": 4}}, "unknown key 'shortest_edge'"),
    ("idefics3", {"image_processor_type": "LlavaImageProcessor"}, "'LlavaImageProcessor', which is not supported"),
    ("idefics3", {"sharpen": 2}, "unknown key 'sharpen'"),
    ("lfm2_vl", {"min_tiles": 1}, "'min_tiles' must be at least 2"),
    ("lfm2_vl", {"tile_size": 500}, "'tile_size' is 500"),
    ("lfm2_vl", {"do_rescale": False}, "'do_rescale' is false"),
    ("lfm2_vl", {"rescale_factor": 0.5}, "'rescale_factor' is 0.5"),
    ("qwen3_vl", {"do_center_crop": True}, "unknown key 'do_center_crop'"),
    ("qwen3_vl", {"image_std": [0.5, 1e-30, 0.5]}, "'std' of its pictures is 0.5, 1e-30, 0.5"),
    ("qwen3_vl", {"image_mean": [1e30] * 3}, "'mean' of its pictures is 1e"),
    ("gemma3", {"do_pan_and_scan": True}, "'do_pan_and_scan' is true"),
    ("gemma3", {"image_seq_length": 64}, "'image_seq_length' is 64"),
]
CONTRADICTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("idefics3", {"max_image_size": {"longest_edge": 528}}, "33 patches a side"),
    ("idefics3", {"max_image_size": {"longest_edge": 256}}, "'image_seq_len' is 64, but a tile has 16"),
    ("idefics3", {"image_mean": [0.5]}, "must have three numbers"),
    ("lfm2_vl", {"encoder_patch_size": 14}, "'encoder_patch_size' is 14, but 'patch_size' of config.json is 16"),
    ("lfm2_vl", {"downsample_factor": 4}, "'downsample_factor' is 4"),
    ("qwen3_vl", {"merge_size": 3}, "'merge_size' is 3, but 'spatial_merge_size'"),
    ("qwen3_vl", {"temporal_patch_size": 1}, "'temporal_patch_size' is 1"),
    ("gemma3", {"size": {"height": 896, "width": 448}}, "'size.width' is 448, but 'image_size'"),
    ("gemma4", {"pooling_kernel_size": 2}, "'pooling_kernel_size' is 2"),
    ("gemma4", {"max_soft_tokens": 11200}, "need more than 10240 positions"),
]


@pytest.mark.parametrize(
    ("name", "changes", "message", "error"),
    [*((*each, UnsupportedModel) for each in UNSUPPORTED), *((*each, CheckpointError) for each in CONTRADICTIONS)],
)
def test_a_setting_that_is_not_known_is_refused_by_name(
    name: str, changes: dict[str, Any], message: str, error: type[CheckpointError], tmp_path: Path
) -> None:
    family = FAMILIES[name]
    folder = write_family(replace(family, preprocessor={**family.preprocessor, **changes}), tmp_path)
    with pytest.raises(error, match=message):
        spec_of(folder)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    folder = write_family(FAMILIES["qwen3_vl"], tmp_path)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json: is missing"):
        spec_of(folder)


def test_a_section_of_the_processor_takes_precedence_over_a_file(tmp_path: Path) -> None:
    """As in transformers, whose newer versions write the section and leave the old file."""
    family = FAMILIES["lfm2_vl"]
    folder = write_family(family, tmp_path)
    section = {**family.preprocessor, "max_tiles": 4}
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": section}))
    tiles = spec_of(folder).tiles
    assert isinstance(tiles, TileGrid)
    assert tiles.most == 4


def test_tokens_must_be_those_of_the_model(tmp_path: Path) -> None:
    family = FAMILIES["gemma3"]
    other = write_family(replace(family, config={**family.config, "image_token_index": 7}), tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"'image_token_index' is 7, but the tokenizer's '<image_soft_token>'"):
        spec_of(other)
    none = write_family(replace(family, tokens={**family.tokens, "boi_token": "<start>"}), tmp_path / "none")
    with pytest.raises(CheckpointError, match="boi_token '<start>' is not a token"):
        spec_of(none)


def test_pictures_of_other_models_are_refused(tmp_path: Path) -> None:
    family = FAMILIES["gemma3"]
    folder = write_family(replace(family, config={**family.config, "model_type": "llava"}), tmp_path)
    with pytest.raises(UnsupportedModel, match="model_type 'llava' are not supported; supported: idefics3"):
        spec_of(folder)
