"""Exports: allowed and refused options, and how a bundle in a framework's own format is recognised."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import CompileTiny
from decoder_families import make_family

from nearfar.compiler.bundle.folder import ExportBundle, open_any, open_bundle
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.pipeline.export import export_model
from nearfar.compiler.runtime.errors import BundleError, NearfarError, RequestError, UnsupportedModel


@pytest.fixture
def export(compile_tiny: CompileTiny, tmp_path: Path) -> Path:
    return shutil.copytree(compile_tiny("llama", "f32", target="mlx"), tmp_path / "export")


def test_an_export_is_recognised_and_its_pages_hold_a_complete_sequence(export: Path) -> None:
    bundle = open_any(export)
    assert isinstance(bundle, ExportBundle)
    manifest = bundle.manifest
    assert (manifest.target, manifest.page_size, manifest.pages_for(manifest.context)) == ("mlx", manifest.context, 1)
    files = {str(path.relative_to(export)) for path in export.rglob("*") if path.is_file()}
    assert {entry.file for entry in manifest.files} | {"manifest.json"} == files
    bundle.verify()


def test_open_bundle_reports_that_an_export_has_no_plans(export: Path) -> None:
    with pytest.raises(
        BundleError, match="is an mlx bundle, which has no plans; compile one with --target webgpu, cpu or cuda"
    ):
        open_bundle(export)


def test_a_changed_file_of_an_export_is_detected(export: Path) -> None:
    file = export / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(BundleError, match=r"model\.safetensors: is corrupt"):
        open_any(export).verify()
    file.write_bytes(data[:-1])
    with pytest.raises(BundleError, match=r"model\.safetensors: has [\d,]+ bytes, the manifest says"):
        open_any(export)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"target": "mlx", "arch": "x86_64"}, RequestError, "--arch: target mlx does not support this option"),
        ({"target": "mlx", "lora_rank": 8}, RequestError, "--lora-rank: target mlx does not support this option"),
        (
            {"target": "mlx", "tuning": (Path("t.json"),)},
            RequestError,
            "--tuning: target mlx does not support this option",
        ),
        (
            {"target": "mlx", "activations": ("float32", "float16")},
            RequestError,
            "a graph has one activation dtype",
        ),
        ({"target": "mlx", "activations": ("int8",)}, RequestError, "--activations int8"),
        ({"target": "mlx", "context": 0}, RequestError, "--context 0: must be at least 1"),
        (
            {"target": "mlx", "context": 10**6},
            RequestError,
            r"trained for \d+ positions \('max_position_embeddings'\)",
        ),
        ({"target": "webgpu", "group_size": 64}, RequestError, "target webgpu does not support them"),
        ({"target": "cpu", "device": "cuda"}, RequestError, "target cpu does not support them"),
    ],
)
def test_options_that_a_target_does_not_support_are_refused_and_nothing_is_written(
    options: dict[str, Any],
    error: type[NearfarError],
    message: str,
    tiny_checkpoints: Mapping[str, Path],
    tmp_path: Path,
) -> None:
    with pytest.raises(error, match=message):
        compile_any(str(tiny_checkpoints["llama"]), tmp_path / "bundle", CompileOptions(**options))
    assert not any(tmp_path.iterdir())


def test_an_embedding_model_is_refused(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="makes embeddings, but mlx bundles generate text"):
        compile_any(str(tiny_checkpoints["embedding"]), tmp_path / "bundle", CompileOptions(target="mlx"))


def test_folders_of_gemma_do_not_hold_its_residual_stream_in_float16(tmp_path: Path) -> None:
    make_family("gemma3_text", tmp_path / "checkpoint", hidden_size=144)
    notes: list[str] = []

    def activation_of(name: str, **options: Any) -> str:
        given = {"quantization": "f16", "context": 64, **options}
        return export_model(
            str(tmp_path / "checkpoint"), tmp_path / name, options=CompileOptions(**given), note=notes.append
        ).manifest.activation

    assert activation_of("mlx", target="mlx") == "bfloat16"
    assert activation_of("webgpu", target="onnx", device="webgpu") == "float32"
    assert not notes
    assert activation_of("float16", target="onnx", device="webgpu", activations=("float16",)) == "float16"
    assert len(notes) == 1
    assert "gemma3_text have activations beyond float16's range" in notes[0]
