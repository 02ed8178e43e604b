"""A report from config.json alone, compared with the report of a dry run with the weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from light_bundle import few_kernels

from nearfar.compiler.measure.dry_run import dry_run
from nearfar.compiler.measure.shapes import report_shapes
from nearfar.compiler.pipeline.compile import CompileOptions
from nearfar.compiler.runtime.errors import CheckpointError, RequestError, UnsupportedModel


@pytest.fixture(autouse=True)
def light() -> Iterator[None]:
    with few_kernels():
        yield


def test_the_report_needs_only_config_json(tiny_checkpoints: dict[str, Path], tmp_path: Path) -> None:
    config = Path(shutil.copy(tiny_checkpoints["qwen3"] / "config.json", tmp_path))
    options = CompileOptions(quantization="q8f16", context=64)
    expected = dry_run(str(tiny_checkpoints["qwen3"]), options).report
    # The files of the tokenizer name the stop token.
    spec = {**expected.spec, "eos_token_ids": ()}
    assert report_shapes(config, options) == replace(expected, model=tmp_path.name, spec=spec)


def test_an_unknown_key_is_ignored_by_name(tiny_checkpoints: dict[str, Path], tmp_path: Path) -> None:
    values = json.loads((tiny_checkpoints["qwen3"] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "odd": 1}))
    with pytest.raises(UnsupportedModel, match="--ignore-key odd"):
        report_shapes(tmp_path / "config.json", CompileOptions())
    report_shapes(tmp_path / "config.json", CompileOptions(ignore_keys=("odd",)))


def test_options_and_values_are_checked(tiny_checkpoints: dict[str, Path], tmp_path: Path) -> None:
    config = tiny_checkpoints["qwen3"] / "config.json"
    with pytest.raises(RequestError, match="--context 100000: the model was trained for 512 positions"):
        report_shapes(config, CompileOptions(context=100_000))
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(CheckpointError, match="is missing"):
        report_shapes(tmp_path / "config.json", CompileOptions())
