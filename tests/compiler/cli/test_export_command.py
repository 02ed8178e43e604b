"""nearfar export: its output, and options that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import CompileTiny

from nearfar.compiler.cli import USER_ERROR, main


def test_a_bundle_becomes_a_file_and_a_folder(
    compile_light: CompileTiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = str(compile_light("qwen3", target="webgpu", self_test=False))
    file = tmp_path / "x.gguf"
    assert main(["export", bundle, "--format", "gguf", "-o", str(file), "--fallback", "f32", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["bytes"] == file.stat().st_size
    assert result["tensors"].keys() == {"F32"}
    assert "became F32, because its rows of 72 weights" in result["notes"][0]
    assert main(["export", bundle, "--format", "safetensors", "-o", str(tmp_path / "folder")]) == 0
    assert "exported" in capsys.readouterr().out
    assert (tmp_path / "folder/config.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "gguf", "--dtype", "float32"], "--dtype: does not apply to --format gguf"),
        (["--format", "safetensors", "--no-tokenizer"], "--no-tokenizer: does not apply to --format safetensors"),
    ],
)
def test_options_of_the_other_format_are_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "bundle", *arguments, "-o", str(tmp_path / "x")]) == USER_ERROR
    assert message in capsys.readouterr().err


def test_a_bundle_of_a_framework_is_refused(
    compile_tiny: CompileTiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = str(compile_tiny("qwen3_wide", target="mlx", quantization="q4f16"))
    assert main(["export", bundle, "--format", "gguf", "-o", str(tmp_path / "x")]) == USER_ERROR
    assert "is a bundle for mlx, whose files mlx's own tools read" in capsys.readouterr().err
