"""A checkpoint that is quantized already, on every target: its integers arrive unchanged, and the logits are those of
transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx_cases import relative_rms
from plain_target import PlainTarget
from quantized_models import QUANTIZATION, WIDE, make_quantized_checkpoint, transformers_logits_of
from rich.console import Console
from test_architectures import kernels_that_run as kernels_that_run
from test_architectures import opened as opened
from test_architectures import target as target
from tolerances import F32, ONNX_INT8_MODEL, relative_error

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.cli.inspect import facts
from nearfar.compiler.formats import load
from nearfar.compiler.formats.checkpoint import StoredMatrix
from nearfar.compiler.measure.report import make_report, weight_formats
from nearfar.compiler.pipeline import compile as compiler
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any, compile_model
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import QuantizationError, RequestError, UnsupportedModel
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits

TOKENS = list(range(3, 509, 23))
OPTIONS: Mapping[str, Any] = {"context": 64, "activations": ("float32",)}
LIMITS = Limits(tokens=32, sequences=2, rows=32, pages=8)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """ "plain": widths that do not fill bytes. "rounded": the same with 8-bit activations. "wide": for other
    frameworks.
    """
    folder = tmp_path_factory.mktemp("quantized")
    return {
        "plain": make_quantized_checkpoint(folder / "plain", num_hidden_layers=1),
        "rounded": make_quantized_checkpoint(folder / "rounded", rounds=True, num_hidden_layers=1),
        "wide": make_quantized_checkpoint(folder / "wide", **dict[str, Any](WIDE)),
    }


@pytest.fixture
def plain_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "load_target", lambda _: PlainTarget())


def logits_of(runner: Any, page_size: int) -> npt.NDArray[np.float32]:
    pages = list(range(-(-len(TOKENS) // page_size)))
    batch = make_batch([Chunk(TOKENS, 0, pages, range(len(TOKENS)))], page_size)
    return np.array(runner.forward(batch).logits)


# On GPUs, the stored forms have cases of kernels (`stored_projection_cases`).
@pytest.mark.parametrize(
    "target", ["cpu", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("webgpu", "cuda"))], indirect=True
)
@pytest.mark.usefixtures("kernels_that_run")
def test_a_kernel_target_computes_what_transformers_computes(
    target: str, opened: Any, checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    # Rounded activations are integers on CPUs too, so that all targets are exact there.
    folder = checkpoints["rounded"]
    bundle = compile_model(str(folder), tmp_path / "bundle", CompileOptions(target=target, **OPTIONS))
    require_own_integers(bundle, folder)
    found = logits_of(opened(open_bundle(bundle.path)), bundle.manifest.page_size)
    assert relative_error(found, transformers_logits_of(folder, TOKENS)) < F32


def require_own_integers(bundle: Bundle, folder: Path) -> None:
    """Require every weight of the bundle to have exactly the checkpoint's values."""
    tensors = load(str(folder)).tensors
    stacked = {"qk_proj": ("q", "k"), "gateup_proj": ("gate", "up")}
    formats = set()
    for name, weight in bundle.manifest.weights.items():
        if weight.quantization is None:
            continue
        formats.add(weight.quantization)
        module, _, last = name.removesuffix(".weight").rpartition(".")
        names = [f"{module}.{part}_proj.weight" for part in stacked[last]] if last in stacked else [name]
        expected = np.concatenate([tensors[each].rows(0, tensors[each].shape[0]) for each in names])
        np.testing.assert_array_equal(bundle.weight(name)[: len(expected)], expected[:, : weight.shape[1]])
    assert formats == {"q2c", "q4c", "q8c"}


@pytest.mark.usefixtures("plain_target")
@pytest.mark.parametrize("name", ["plain", "rounded"])
def test_the_reference_runs_every_width_and_the_report_counts_them(
    name: str, checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    folder = checkpoints[name]
    bundle = compile_model(str(folder), tmp_path / "bundle", CompileOptions(**OPTIONS))
    found = logits_of(ReferenceRunner(bundle), bundle.manifest.page_size)
    assert relative_error(found, transformers_logits_of(folder, TOKENS)) < F32
    formats = weight_formats(bundle.manifest)
    stored = load(str(folder)).stored_forms
    # The checkpoint counts the padding of a row's last byte.
    assert all(0 <= stored[form] - formats[form]["parameters"] < 0.05 * stored[form] for form in stored)
    assert formats["q2c"]["bytes"] < formats["q4c"]["bytes"] * 2
    assert sum(each["bytes"] for each in formats.values()) < sum(shard.size for shard in bundle.manifest.shards)


@pytest.mark.usefixtures("plain_target")
def test_only_requantize_converts_the_weights_and_reports_the_error(
    checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    refused = CompileOptions(quantization="f32", **OPTIONS)
    with pytest.raises(RequestError, match=r"already quantized \(q2c, q4c, q8c\).* add --requantize"):
        compile_model(str(checkpoints["plain"]), tmp_path / "bundle", refused)
    notes: list[str] = []
    options = CompileOptions(quantization="f32", requantize=True, **OPTIONS)
    bundle = compile_model(str(checkpoints["plain"]), tmp_path / "bundle", options, note=notes.append)
    assert {weight.quantization for weight in bundle.manifest.weights.values()} == {None, "f32"}
    assert [re.search(r"(\d+ matrices of q.c) become f32, which changes their weights by 0 of", note) for note in notes]
    assert len(notes) == 3
    found = logits_of(ReferenceRunner(bundle), bundle.manifest.page_size)
    assert relative_error(found, transformers_logits_of(checkpoints["plain"], TOKENS)) < F32


@pytest.mark.usefixtures("plain_target")
def test_matrices_that_the_checkpoint_leaves_as_floats_are_float16(tmp_path: Path) -> None:
    quantization = {**QUANTIZATION, "modules_to_not_convert": ["lm_head"], "module_quant_configs": {}}
    folder = make_quantized_checkpoint(tmp_path / "model", quantization=quantization, num_hidden_layers=1)
    manifest = compile_model(str(folder), tmp_path / "bundle", CompileOptions(**OPTIONS)).manifest
    assert manifest.quantization == "f16"
    assert manifest.weights["lm_head.weight"].quantization == "f16"
    assert manifest.weights["model.embed_tokens.weight"].quantization == "q4c"


@pytest.mark.usefixtures("plain_target")
def test_a_split_matrix_and_a_tied_head_keep_their_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlainTarget, "MAX_BINDING_BYTES", 10_240)
    folder = make_quantized_checkpoint(tmp_path / "model", num_hidden_layers=1)
    tie(folder)
    options = CompileOptions(**{**OPTIONS, "context": 16})
    bundle = compile_model(str(folder), tmp_path / "bundle", options)
    parts = {name: each for name, each in bundle.manifest.weights.items() if ".part" in name}
    assert {each.quantization for each in parts.values()} == {"q8c"}
    whole = load(str(folder)).tensors["model.embed_tokens.weight"]
    rows = [bundle.weight(name) for name in parts if name.startswith("model.embed_tokens")]
    np.testing.assert_array_equal(np.concatenate(rows), whole.rows(0, whole.shape[0])[:, :70])


def tie(folder: Path) -> None:
    """Tie the head to the embedding: it is not stored."""
    from safetensors.numpy import load_file, save_file

    config = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = True
    config["quantization_config"]["module_quant_configs"]["embed_tokens"] = {"num_bits": 8}
    del config["quantization_config"]["module_quant_configs"]["lm_head|embed_tokens"]
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("lm_head")}
    save_file(kept, folder / "model.safetensors")


def test_inspect_lists_the_weights_of_each_format(checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    bundle = compile_model(str(checkpoints["plain"]), tmp_path / "bundle", CompileOptions(self_test=False, **OPTIONS))
    assert bundle.manifest.matrix_formats == "q2c, q4c, q8c"
    table = Console(width=200, file=StringIO())
    table.print(facts(make_report(bundle.manifest)))
    shown = table.file.getvalue()  # type: ignore[attr-defined]
    assert "the checkpoint's, activations float32" in shown
    assert "q2c: 29,820 weights, 11.9 kB" in shown
    assert "f16" not in shown


# --- other frameworks ---


@pytest.mark.parametrize("name", ["mlx", "onnx"])
def test_a_framework_computes_with_the_checkpoints_integers(
    name: str, checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    pytest.importorskip({"mlx": "mlx.core", "onnx": "onnxruntime"}[name])
    bundle = compile_any(str(checkpoints["wide"]), tmp_path / "bundle", CompileOptions(target=name, **OPTIONS))
    runner = open_runner(name, bundle, LIMITS)
    found, expected = logits_of(runner, 64), transformers_logits_of(checkpoints["wide"], TOKENS)
    runner.close()
    # ONNX Runtime rounds the inputs of its products to 8 bits.
    if name == "onnx":
        assert relative_rms(found, expected) < ONNX_INT8_MODEL
    else:
        assert relative_error(found, expected) < F32
        quantization = json.loads((bundle.path / "config.json").read_text())["quantization"]
        assert quantization["model.layers.0.self_attn.v_proj"] == {"group_size": 128, "bits": 8}


def test_features_that_a_framework_lacks_are_refused_by_name(checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    options = CompileOptions(target="mlx", **OPTIONS)
    with pytest.raises(QuantizationError, match=r"70 columns with scales of q.c, and MLX needs a multiple"):
        compile_any(str(checkpoints["plain"]), tmp_path / "bundle", options)
    with pytest.raises(UnsupportedModel, match=r"rounds activations .* use --target webgpu, cpu or cuda"):
        compile_any(str(checkpoints["rounded"]), tmp_path / "bundle", options)
    with pytest.raises(RequestError, match="--group-size 64: the checkpoint's weights are already quantized"):
        compile_any(str(checkpoints["wide"]), tmp_path / "bundle", CompileOptions(target="mlx", group_size=64))


def test_adapters_beside_rounded_activations_are_refused(checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    options = CompileOptions(target="cpu", lora_rank=4, **OPTIONS)
    with pytest.raises(RequestError, match=r"--lora-rank 4: .* rounds its activations"):
        compile_any(str(checkpoints["rounded"]), tmp_path / "bundle", options)


@pytest.mark.usefixtures("plain_target")
def test_a_bundle_that_names_an_unknown_format_is_refused(checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    from nearfar.compiler.bundle.check import check_manifest
    from nearfar.compiler.bundle.fault import Fault

    manifest = compile_model(str(checkpoints["plain"]), tmp_path / "bundle", CompileOptions(**OPTIONS)).manifest
    assert isinstance(manifest, Manifest)
    name = "model.layers.0.self_attn.v_proj.weight"
    for wrong in ("q7c", "q8g33", "q8g0"):
        weight = manifest.weights[name].model_copy(update={"quantization": wrong})
        changed = manifest.model_copy(update={"weights": {**manifest.weights, name: weight}})
        with pytest.raises(Fault, match=f"quantization '{wrong}' is not known"):
            check_manifest(changed)


def test_every_stored_matrix_is_one_of_the_seams(checkpoints: Mapping[str, Path]) -> None:
    tensors = load(str(checkpoints["plain"])).tensors
    stored = [tensor for tensor in tensors.values() if isinstance(tensor, StoredMatrix)]
    assert len(stored) == 2 + 7
    for tensor in stored:
        planes = tensor.planes(3, 9)
        assert {name: plane.shape for name, plane in planes.items()} == {
            each.name: (6, each.columns) for each in tensor.form.planes(tensor.shape[1])
        }
        np.testing.assert_array_equal(tensor.rows(3, 9), tensor.rows(0, 10)[3:9])
