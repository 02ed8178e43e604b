"""Fixtures: tiny checkpoints whose heads ONNX Runtime accepts, and bundles for onnx of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tiny_models import PLAIN_CHECKPOINTS, make_checkpoint


@dataclass(frozen=True, slots=True)
class Exported:
    """A checkpoint, its bundle for onnx, and transformers' model."""

    checkpoint: Path
    bundle: Path
    model: Any


def export_folder(checkpoint: Path, output: Path, **options: Any) -> None:
    from nearfar.compiler.pipeline.compile import CompileOptions
    from nearfar.compiler.pipeline.export import export_model

    export_model(str(checkpoint), output, CompileOptions(target="onnx", **options))


@pytest.fixture(scope="session")
def onnx_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The plain tiny checkpoints with 2 layers and heads of 16 elements; ONNX Runtime's attention needs a multiple of
    16.
    """
    folder = tmp_path_factory.mktemp("onnx_checkpoints")
    for name in PLAIN_CHECKPOINTS:
        make_checkpoint(name, folder / name, head_dim=16, num_hidden_layers=2)
    return {name: folder / name for name in PLAIN_CHECKPOINTS}


@pytest.fixture(scope="session")
def export_onnx(onnx_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """export_onnx(checkpoint, quantization, **options) -> the folder of a bundle for 64 tokens. Each bundle is made
    once.
    """
    folder = tmp_path_factory.mktemp("onnx_bundles")
    done: dict[tuple[object, ...], Path] = {}

    def export_once(checkpoint: str, quantization: str, **options: Any) -> Path:
        key = (checkpoint, quantization, *sorted(options.items()))
        if key not in done:
            path = folder / f"{len(done)}-{checkpoint}-{quantization}"
            given = {"context": 64, **options}
            export_folder(onnx_checkpoints[checkpoint], path, quantization=quantization, **given)
            done[key] = path
        return done[key]

    return export_once
