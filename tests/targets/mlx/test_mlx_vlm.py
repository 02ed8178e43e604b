"""Folders of models with towers: our reader reads back the same tensors, and mlx-vlm computes the features, logits and
greedy tokens of transformers.

mlx-vlm needs OpenCV and other large packages, so it is not among those of the tests: with an interpreter that has it
(`python -m venv`, `pip install mlx-vlm==0.7.10` beside the tests' packages), run this file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_vision import LIMITS, compiled, features_of
from test_vision import logits_of as logits_of_bundle
from tolerances import F16, F32, relative_error
from vision_families import Expected
from vlm_families import Prompt, prompt_with_pictures, prompt_with_sound, write, write_with_ears

from nearfar.compiler import quant
from nearfar.compiler.bundle.folder import ExportBundle, open_any
from nearfar.compiler.formats import Checkpoint, load
from nearfar.compiler.formats.safetensors_file import read_safetensors
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.pipeline.graphs import graphs_of
from nearfar.compiler.pipeline.target import check_machine, open_runner
from nearfar.compiler.runtime.errors import UnsupportedModel
from nearfar.compiler.runtime.plan_runner import PlanRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.targets.mlx.towers import forms_of_projections

FAST = ("smolvlm", "gemma3", "qwen3_5")
SLOW = (
    "idefics3", "lfm2_vl", "lfm2_vl_plain", "gemma4", "gemma4_bounded", "gemma4_causal", "gemma4_unified", "qwen3_vl",
)  # fmt: skip
HEARING = ("gemma4", "gemma4_unified")
TOKENS = 6


def folder_of(checkpoint: Path, output: Path, **options: Any) -> ExportBundle:
    given = {"quantization": "f32", "context": 256, "activations": ("float32",), **options}
    bundle = compile_any(str(checkpoint), output, CompileOptions(target="mlx", **given))
    assert isinstance(bundle, ExportBundle)
    return bundle


def require_the_same(found: Checkpoint, expected: Checkpoint) -> None:
    """The same model, whose tied head may be stored, too."""
    assert (found.spec, found.images, found.sounds) == (expected.spec, expected.images, expected.sounds)
    assert found.tensors.keys() - {"lm_head.weight"} == expected.tensors.keys() - {"lm_head.weight"}
    for name, tensor in expected.tensors.items():
        values = tensor.rows(0, tensor.shape[0])
        read = found.tensors[name].rows(0, found.tensors[name].shape[0]).reshape(values.shape)
        # Norms are stored plus one.
        np.testing.assert_allclose(read, values, 0, 3e-7, err_msg=name)


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(each, marks=pytest.mark.exhaustive) for each in SLOW)])
def test_a_folder_is_read_back_as_the_checkpoint(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(name, tmp_path / "checkpoint", monkeypatch)
    bundle = folder_of(tmp_path / "checkpoint", tmp_path / "mlx")
    require_the_same(load(str(bundle.path)), load(str(tmp_path / "checkpoint")))
    # A kernel of patches has the channels last, as MLX convolves.
    shapes = [each.shape for each in read_safetensors(bundle.path / "model.safetensors").values()]
    assert all(shape[-1] == 3 for shape in shapes if len(shape) > 3)
    copied = ("preprocessor_config.json", "chat_template.jinja")
    for file in copied:
        assert (bundle.path / file).read_bytes() == (tmp_path / "checkpoint" / file).read_bytes()


@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.exhaustive) for each in HEARING])
def test_a_folder_of_a_model_that_hears_is_read_back(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_with_ears(name, tmp_path / "checkpoint", monkeypatch)
    bundle = folder_of(tmp_path / "checkpoint", tmp_path / "mlx")
    require_the_same(load(str(bundle.path)), load(str(tmp_path / "checkpoint")))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExportBundle]:
    """A checkpoint whose matrices fill the groups of MLX, and its folder with 4 bits."""
    folder = tmp_path_factory.mktemp("wide")
    with pytest.MonkeyPatch.context() as monkeypatch:
        write("smolvlm", folder / "checkpoint", monkeypatch, wide=True)
    return folder / "checkpoint", folder_of(folder / "checkpoint", folder / "mlx", quantization="q4f16")


def test_projections_that_read_pixels_stay_floats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LFM2-VL has no convolution: mlx-vlm gives pixels the dtype of the matrix that they are multiplied by."""
    write("lfm2_vl", tmp_path, monkeypatch)
    found = forms_of_projections(graphs_of(load(str(tmp_path)), 64))
    assert "vision_tower.encoder.layers.0.mlp.fc1.weight" in found
    assert "vision_tower.embeddings.patch_embedding.weight" not in found


def test_projections_of_towers_have_8_bits_and_convolutions_stay_floats(
    wide: tuple[Path, ExportBundle],
) -> None:
    checkpoint, bundle = wide
    config = json.loads((bundle.path / "config.json").read_text())
    section = config["quantization"]
    assert (section["bits"], section["group_size"]) == (4, 32)
    modules = {name: each for name, each in section.items() if isinstance(each, dict)}
    assert {each["bits"] for each in modules.values()} == {8}
    assert {name.split(".")[0] for name in modules} == {"vision_model", "connector"}
    stored = read_safetensors(bundle.path / "model.safetensors")
    assert {f"{name}.scales" for name in modules} <= stored.keys()
    assert "vision_model.embeddings.patch_embedding.scales" not in stored
    assert "language_model.layers.0.mlp.up_proj.scales" in stored
    read, original = load(str(bundle.path)), load(str(checkpoint))
    name = "vision_model.encoder.layers.0.mlp.fc1.weight"
    weights = original.tensors[name]
    form = quant.by_name("q8f16")
    expected = form.unpack(form.pack(weights.rows(0, weights.shape[0])), weights.shape[1])
    np.testing.assert_array_equal(read.tensors[name].rows(0, weights.shape[0]), expected)


def test_our_runner_refuses_a_folder_with_towers_by_name(wide: tuple[Path, ExportBundle]) -> None:
    pytest.importorskip("mlx.core")
    for use in (check_machine, lambda bundle: open_runner("mlx", bundle, Limits(tokens=8))):
        with pytest.raises(UnsupportedModel, match="run the folder with mlx-vlm"):
            use(open_any(wide[1].path))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("smolvlm", {"head_dim": 24}, "its text model has heads of another size"),
        ("smolvlm", {"mlp_bias": True, "attention_bias": True}, "its text model has biases"),
        ("gemma3", {}, "its head is not the embedding"),
        ("gemma4_bounded", {}, "'pad_token_id', whose row in a table of layers pictures have, is 3"),
    ],
)
def test_what_mlx_vlm_computes_otherwise_is_refused_by_name(
    name: str, text: dict[str, Any], message: str, tmp_path: Path
) -> None:
    from vision_families import make_vision

    values = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2} if name == "gemma3" else {}
    make_vision(name, tmp_path / "checkpoint", **values, **text)
    with pytest.raises(UnsupportedModel, match=f"has no such model: {message}"):
        folder_of(tmp_path / "checkpoint", tmp_path / "mlx")
    assert not (tmp_path / "mlx").exists()


def test_a_note_says_how_mlx_vlm_reads_the_pictures_of_gemma_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    write("gemma3", tmp_path / "checkpoint", monkeypatch)
    compile_any(
        str(tmp_path / "checkpoint"),
        tmp_path / "mlx",
        CompileOptions(target="mlx", quantization="f16"),
        note=notes.append,
    )
    assert any(each.startswith("mlx-vlm lets a token of a picture see only those before it") for each in notes)


def ask(jobs: Mapping[str, tuple[Path, Prompt]], folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """What mlx-vlm computes, in one process for all, because it takes long to import."""
    described = []
    for name, (path, prompt) in jobs.items():
        np.savez(folder / f"{name}_inputs.npz", **dict[str, Any](prompt.inputs))
        described.append(
            {
                "folder": str(path), "inputs": str(folder / f"{name}_inputs.npz"), "token_ids": prompt.token_ids,
                "placeholders": prompt.placeholders, "max_tokens": TOKENS, "output": str(folder / f"{name}.npz"),
            }
        )  # fmt: skip
    (folder / "jobs.json").write_text(json.dumps(described))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "mlx_vlm_process.py"), str(folder / "jobs.json")],
        capture_output=True, text=True, check=False, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {name: np.load(folder / f"{name}.npz") for name in jobs}


@pytest.mark.exhaustive
@pytest.mark.skipif(find_spec("mlx_vlm") is None, reason="mlx-vlm is not installed")
def test_mlx_vlm_computes_what_transformers_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: dict[str, tuple[Path, Prompt]] = {}
    for name in (*FAST, *SLOW):
        checkpoint = tmp_path / name / "checkpoint"
        images = write(name, checkpoint, monkeypatch)
        prompt = prompt_with_pictures(name, checkpoint, images)
        jobs[name] = folder_of(checkpoint, tmp_path / name / "mlx").path, prompt
    for name in HEARING:
        checkpoint = tmp_path / f"ears_{name}" / "checkpoint"
        picture = write_with_ears(name, checkpoint, monkeypatch)
        prompt = prompt_with_sound(name, checkpoint, picture)
        jobs[f"ears_{name}"] = folder_of(checkpoint, checkpoint.parent / "mlx").path, prompt
    for name, found in ask(jobs, tmp_path).items():
        prompt = jobs[name][1]
        assert relative_error(found["features"], prompt.features) < F32, name
        assert relative_error(found["logits"], prompt.logits) < F32, name
        # The answer begins with the token that transformers likes best.
        assert found["answer"][0] == prompt.logits[-1].argmax(), name


@pytest.mark.exhaustive
@pytest.mark.skipif(find_spec("mlx_vlm") is None, reason="mlx-vlm is not installed")
def test_mlx_vlm_computes_what_our_bundle_of_the_quantized_folder_does(
    wide: tuple[Path, ExportBundle], tmp_path: Path
) -> None:
    checkpoint, bundle = wide
    with pytest.MonkeyPatch.context() as monkeypatch:
        images = write("smolvlm", tmp_path / "again", monkeypatch, wide=True)
    prompt = prompt_with_pictures("smolvlm", checkpoint, images)
    runner = open_runner("numpy", compiled(bundle.path, tmp_path / "bundle", quantization=None), LIMITS)
    assert isinstance(runner, PlanRunner)
    places = tuple(
        index for index, token in enumerate(prompt.token_ids)
        if token in prompt.placeholders and prompt.token_ids[index - 1] not in prompt.placeholders
    )  # fmt: skip
    expected = Expected(images, prompt.token_ids, places, (), prompt.logits)
    features = features_of(runner, expected)
    logits = logits_of_bundle(runner, expected, features, len(prompt.token_ids), len(prompt.token_ids))
    found = ask({"wide": (bundle.path, prompt)}, tmp_path)["wide"]
    # What stays floats is float16 in the bundle.
    assert relative_error(found["features"], np.concatenate(features)) < F16
    assert relative_error(found["logits"], logits) < F16
