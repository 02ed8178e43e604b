"""Text models inside models of images or sound: their logits, the parts that are left out, and their configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_families import TOKENS, make_family
from models_with_images import MODELS, make_with_images
from safetensors.numpy import load_file, save_file
from tolerances import F32, relative_error

from nearfar.compiler.arch.vision import TOWERS
from nearfar.compiler.formats import load
from nearfar.compiler.formats.huggingface import read_spec
from nearfar.compiler.formats.multimodal import MODEL_TYPES
from nearfar.compiler.measure.checkpoint_reference import CheckpointReference
from nearfar.compiler.runtime.errors import CheckpointError, UnsupportedModel

# The parts of some models, as named in their notes.
LEFT_OUT = {
    "gemma3": "multi_modal_projector (2 tensors), vision_tower (32 tensors)",
    "llava_next": "image_newline (1 tensor), multi_modal_projector (4 tensors), vision_tower (23 tensors)",
    "qwen2_5_vl": "visual (18 tensors)",
    "smolvlm": "connector (1 tensor), vision_model (21 tensors)",
    "voxtral": "audio_tower (22 tensors), multi_modal_projector (2 tensors)",
}


def test_every_model_type_is_tested() -> None:
    # The text model of Gemma 4 is tested with its quantized checkpoints, and as a model of its own; that of
    # EmbeddingGemma 2 with the other models that make vectors, and that of a decision model with its head.
    assert {*MODELS, "embedding_gemma2", "gemma4", "jev"} == set(MODEL_TYPES)


@pytest.mark.parametrize("name", MODELS)
def test_the_text_model_has_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    expected = make_with_images(name, tmp_path)
    checkpoint = load(str(tmp_path))
    assert relative_error(logits_of(tmp_path), expected) < F32
    *others, note = checkpoint.notes
    assert ["has no preprocessor_config.json" in other for other in others] == [True] * (name in TOWERS)
    assert note.startswith("only the text model is compiled; left out: ")
    if name in LEFT_OUT:
        assert note.endswith(f": {LEFT_OUT[name]}")
    # An exported folder contains only the text model.
    assert checkpoint.config["model_type"] == checkpoint.spec.model_type
    assert "vision_config" not in checkpoint.config


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl"])
def test_the_first_configurations_of_qwen_have_the_text_models_keys_at_the_top(name: str, tmp_path: Path) -> None:
    expected = make_with_images(name, tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    text = values.pop("text_config")
    rope = text.pop("rope_parameters")
    old = {"rope_theta": rope["rope_theta"], "rope_scaling": {"type": "mrope", "mrope_section": [2, 2, 2]}}
    (tmp_path / "config.json").write_text(json.dumps({**text, **values, **old}))
    assert relative_error(logits_of(tmp_path), expected) < F32


def test_the_rotation_of_qwen_is_stretched_as_in_its_documentation(tmp_path: Path) -> None:
    make_with_images("qwen3_vl", tmp_path)
    yarn = {"rope_type": "yarn", "factor": 3.0, "mrope_section": [4, 4, 4], "mrope_interleaved": True}
    spec = read_with(tmp_path, text={"rope_theta": 7.0, "rope_parameters": None, "rope_scaling": yarn})
    assert (spec.rope.scaling, spec.rope.factor, spec.rope.theta) == ("yarn", 3.0, 7.0)
    # transformers' default.
    assert read_with(tmp_path, text={"rope_parameters": None, "rope_theta": None}).rope.theta == 500_000.0


def test_heads_that_draft_tokens_are_left_out_by_name_if_they_are_not_supported(tmp_path: Path) -> None:
    expected = make_family("llama_yarn", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    drafts = {f"mtp.layers.0.{name}.weight": np.ones((3, 4), np.float32) for name in ("proj", "head")}
    save_file({**tensors, **drafts}, tmp_path / "model.safetensors", {"format": "pt"})
    (note,) = load(str(tmp_path)).notes
    assert note.endswith("draft tokens are left out (mtp.*, 2 tensors): those of llama are not supported")
    assert relative_error(logits_of(tmp_path), expected) < F32


@pytest.mark.parametrize(
    ("values", "text", "error", "message"),
    [
        ({"text_config": None}, {}, CheckpointError, "'text_config' is missing, but 'model_type' is 'smolvlm'"),
        ({"text_config": []}, {}, CheckpointError, "'text_config' is .* expected an object"),
        ({"use_gates": True}, {}, UnsupportedModel, "config.json: unknown key 'use_gates' = true"),
        ({}, {"use_gates": True}, UnsupportedModel, "config.json: text_config: unknown key 'use_gates' = true"),
        ({}, {"qk_layer_norms": True}, UnsupportedModel, "text_config: unknown key 'qk_layer_norms'"),
        ({}, {"model_type": "mamba"}, UnsupportedModel, "model_type 'mamba' is not supported"),
        ({}, {"model_type": None}, CheckpointError, "text_config: 'model_type' is null"),
    ],
)
def test_configurations_that_are_not_known_are_refused_by_key(
    values: dict[str, Any], text: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    make_with_images("smolvlm", tmp_path)
    with pytest.raises(error, match=message):
        read_with(tmp_path, text, **values)


def test_keys_of_smolvlm_that_concern_images_change_nothing(tmp_path: Path) -> None:
    make_with_images("smolvlm", tmp_path)
    plain = read_spec(tmp_path / "config.json")
    keys = {"neftune_noise_alpha": 0.0, "perceiver_config": {"model_type": "smolvlm"}, "pixel_shuffle_factor": 4}
    assert read_with(tmp_path, {**keys, "qk_layer_norms": False}, vocab_size=509, pad_token_id=2) == plain


def test_keys_of_trainers_change_nothing_beside_the_text_model_and_in_it(tmp_path: Path) -> None:
    expected = make_with_images("smolvlm", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    keys = {"unsloth_version": "2026.3.3", "unsloth_fixed": True, "_attn_implementation_autoset": True}
    keys |= {"id2label": {"0": "a"}, "label2id": {"a": 0}, "attn_implementation": "sdpa", "embd_pdrop": 0.1}
    config = {**config, **keys, "text_config": {**config["text_config"], **keys}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert relative_error(logits_of(tmp_path), expected) < F32


def test_unknown_keys_at_every_place_can_be_ignored_by_name(tmp_path: Path) -> None:
    expected = make_with_images("smolvlm", tmp_path)
    plain = read_spec(tmp_path / "config.json")
    with pytest.raises(UnsupportedModel, match=r"add --ignore-key use_gates$"):
        read_with(tmp_path, {"odd": "x"}, use_gates=True)
    with pytest.raises(UnsupportedModel, match=r"text_config: unknown key 'odd' = 'x'"):
        read_spec(tmp_path / "config.json", ["use_gates"])
    assert read_spec(tmp_path / "config.json", ["use_gates", "odd"]) == plain
    checkpoint = load(str(tmp_path), ["use_gates", "odd"])
    reference = CheckpointReference(checkpoint, len(TOKENS))
    [hidden] = reference.hidden([TOKENS])
    assert relative_error(reference.logits(hidden), expected) < F32


def test_quantized_weights_of_an_unknown_method_are_not_ignored(tmp_path: Path) -> None:
    make_with_images("smolvlm", tmp_path)
    with pytest.raises(UnsupportedModel, match=r"method 'aqlm'.*pass the unquantized checkpoint") as caught:
        read_with(tmp_path, {}, quantization_config={"quant_method": "aqlm"})
    assert "--ignore-key" not in caught.value.message


def read_with(folder: Path, text: dict[str, Any], **values: Any) -> Any:
    """The spec with other values, at the top and in the text model's section."""
    config = json.loads((folder / "config.json").read_text())
    config["text_config"].update(text)
    (folder / "config.json").write_text(json.dumps({**config, **values}))
    return read_spec(folder / "config.json")


def logits_of(folder: Path) -> Any:
    reference = CheckpointReference(load(str(folder)), len(TOKENS))
    [hidden] = reference.hidden([TOKENS])
    return reference.logits(hidden)
