"""compile_model: invalid input causes a typed error and leaves no files; valid input results in the same files each
time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from light_bundle import few_kernels

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.formats import load
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.pipeline.context import paged_context
from nearfar.compiler.runtime.errors import (
    BundleError,
    CheckpointError,
    NearfarError,
    OutputError,
    QuantizationError,
    RequestError,
)

Tensors = dict[str, np.ndarray[Any, Any]]
# Only half of the kernels, for tests that do not check them.
LIGHT: dict[str, Any] = {"context": 64, "activations": ("float32",)}


@pytest.fixture
def checkpoint(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> Path:
    """A copy of a checkpoint that a test may damage."""
    return Path(shutil.copytree(tiny_checkpoints["llama"], tmp_path / "checkpoint"))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "outputs/bundle"


def edit(checkpoint: Path, change: Callable[[Tensors], object]) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(checkpoint / "model.safetensors")
    change(tensors)
    save_file(tensors, checkpoint / "model.safetensors")


def refused(error: type[NearfarError], message: str, checkpoint: Path, output: Path, **options: Any) -> None:
    """Compiling must raise this error and leave nothing at the output or beside it."""
    with pytest.raises(error, match=message):
        compile_model(str(checkpoint), output, CompileOptions(**{**LIGHT, **options}))
    assert not output.parent.exists() or not list(output.parent.iterdir())


def spoil(tensor: str, value: float) -> Callable[[Tensors], object]:
    return lambda tensors: tensors[tensor].reshape(-1).__setitem__(-1, value)


DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda tensors: tensors.pop(DOWN), CheckpointError, f"tensor {DOWN} is missing"),
        (
            lambda tensors: tensors.update({DOWN: np.zeros((72, 69), np.float32)}),
            CheckpointError,
            r"has shape \[72, 69\], but config.json requires",
        ),
        (
            lambda tensors: tensors.update(extra=np.zeros(3, np.float32)),
            CheckpointError,
            "tensor extra is not part of a llama model",
        ),
        (spoil(DOWN, np.nan), QuantizationError, f"{DOWN}: the tensor holds NaN or infinity"),
        (spoil(DOWN, np.inf), QuantizationError, f"{DOWN}: the tensor holds NaN or infinity"),
        (spoil(DOWN, 1e9), QuantizationError, f"{DOWN}: weights are too large for f16 scales"),
        (spoil("lm_head.weight", -np.inf), QuantizationError, "lm_head.weight: the tensor holds NaN"),
    ],
)
def test_tensors_that_do_not_match_are_named_and_leave_no_bundle(
    change: Callable[[Tensors], object], error: type[NearfarError], message: str, checkpoint: Path, output: Path
) -> None:
    edit(checkpoint, change)
    refused(error, message, checkpoint, output)


def test_nan_in_a_vector_is_refused(checkpoint: Path, output: Path) -> None:
    edit(checkpoint, spoil("model.norm.weight", np.nan))
    refused(QuantizationError, "model.norm.weight", checkpoint, output)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"quantization": "q5"}, RequestError, "--quantization: unknown quantization 'q5'"),
        ({"target": "metal9"}, RequestError, "--target: unknown target 'metal9'"),
        ({"context": 513}, RequestError, "the model was trained for 512 positions"),
        ({"context": 0}, RequestError, "must be at least 1"),
        ({"quantization": "f32", "activations": ("float16",)}, RequestError, "quantization f32 offers float32"),
        ({"quantization": "f16", "activations": ("int8", "float16")}, RequestError, "int8 needs weights of integers"),
        ({"activations": ("int8", "float32", "int8")}, RequestError, "name each dtype once"),
    ],
)
def test_options_out_of_range_are_refused(
    options: dict[str, Any], error: type[NearfarError], message: str, checkpoint: Path, output: Path
) -> None:
    refused(error, message, checkpoint, output, **options)


@pytest.mark.parametrize(("kv", "head_dim", "multiple"), [("q8", 22, 4), ("q4", 20, 8)])
def test_quantized_keys_and_values_need_a_head_size_that_fills_words(
    kv: str, head_dim: int, multiple: int, checkpoint: Path, output: Path
) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "head_dim": head_dim}))
    message = f"--kv {kv}: the model's head size of {head_dim} is not a multiple of {multiple}"
    refused(RequestError, message, checkpoint, output, kv=kv)


@pytest.mark.parametrize("target", ["webgpu", "cpu"])
def test_floats_of_8_bits_need_a_target_that_reads_them(target: str, checkpoint: Path, output: Path) -> None:
    message = (
        f"--kv fp8: {target} bundles do not support 8-bit floats for keys and values; use --kv q8, or --target cuda"
    )
    refused(RequestError, message, checkpoint, output, kv="fp8", target=target)


def test_quantized_keys_and_values_allow_a_longer_context(checkpoint: Path) -> None:
    # Bytes per token: 3 kv heads of 24 elements in float32, or of 24 or 12 bytes and a scale; and half of 24 cosines
    # and sines.
    spec = replace(load(str(checkpoint)).spec, max_position_embeddings=10_000)
    both = ("float16", "float32")
    assert paged_context(None, spec, both, 576 * 80) == 80
    assert paged_context(None, spec, both, 576 * 80, "q8") == 576 * 80 // 168 // 16 * 16
    assert paged_context(None, spec, both, 576 * 80, "q4") == 576 * 80 // 96 // 16 * 16


@pytest.mark.parametrize("suffix", [".bin", ".wgsl", "manifest.json"])
def test_a_full_disk_leaves_no_partial_bundle(
    suffix: str, checkpoint: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_open = Path.open

    def open_full(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        # Every write to this device fails as on a full disk.
        full = "w" in mode and path.name.endswith(suffix)
        return (
            open("/dev/full", mode, 0 if "b" in mode else 1) if full else really_open(path, mode, *arguments, **options)
        )

    monkeypatch.setattr(Path, "open", open_full)
    refused(OutputError, "cannot be written: the disk is full", checkpoint, output)


def test_a_manifest_that_could_not_be_opened_is_not_written(
    checkpoint: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearfar.compiler.pipeline.compile.write_kernels", lambda *_: ({}, []))
    refused(BundleError, "variants.*; this is a fault of the compiler", checkpoint, output, self_test=False)


def test_a_failed_compile_with_force_keeps_the_old_bundle(checkpoint: Path, output: Path) -> None:
    compile_model(str(checkpoint), output, CompileOptions(**LIGHT))
    edit(checkpoint, spoil(DOWN, np.nan))
    with pytest.raises(OutputError, match="exists already"):
        compile_model(str(checkpoint), output, CompileOptions(**LIGHT))
    with pytest.raises(QuantizationError):
        compile_model(str(checkpoint), output, CompileOptions(**LIGHT, force=True))
    open_bundle(output).verify()
    assert list(output.parent.iterdir()) == [output]


def test_compiling_twice_writes_the_same_files(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = []
    for name in ("a", "b", "again"):
        # The first two lower all kernels; the last one finds them.
        monkeypatch.setenv("NEARFAR_KERNEL_CACHE", str(tmp_path / "kernels" / name.replace("again", "b")))
        with few_kernels():
            compile_model(str(checkpoint), tmp_path / name, CompileOptions(context=64))
        contents.append(
            {
                str(path.relative_to(tmp_path / name)): path.read_bytes()
                for path in (tmp_path / name).rglob("*")
                if path.is_file()
            }
        )
    assert contents[0] == contents[1] == contents[2]


def test_progress_ends_at_all_of_each_phase(checkpoint: Path, output: Path) -> None:
    last: dict[str, tuple[int, int]] = {}
    compile_model(
        str(checkpoint), output, CompileOptions(**LIGHT), lambda phase, done, total: last.update({phase: (done, total)})
    )
    assert list(last) == ["read", "graph", "kernels", "weights", "self-test"]
    assert all(done == total for done, total in last.values())


def test_the_context_defaults_to_the_models_limit(checkpoint: Path, output: Path) -> None:
    assert compile_model(str(checkpoint), output, CompileOptions(activations=("float32",))).manifest.context == 512
