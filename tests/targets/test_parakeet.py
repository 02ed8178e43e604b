"""Parakeet computes what transformers computes, on every kernel target: the scores of each row's tokens, of windows
whose last row is not full, alone and together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from light_bundle import kernels_of_models
from plain_target import without_kernels
from test_runners import emulation_for, open_on
from tiny_parakeet import MELS, make_parakeet
from tolerances import F32, relative_error

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.pipeline.compile import compile_model
from nearfar.compiler.pipeline.options import CompileOptions
from nearfar.compiler.runtime.audio.frame_rows import frames_batch
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.plan_runner import PlanRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.trust import check_runner

CONTEXT = 40
LIMITS = Limits(tokens=CONTEXT, sequences=3)
# Windows of frames: of one row and less, of full rows, and with 1 to 7 frames of the last row.
WINDOWS = [1, 7, 64, 97, 103]


@pytest.fixture(scope="module")
def parakeet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The checkpoint's folder, and transformers' model."""
    folder = tmp_path_factory.mktemp("parakeet")
    return folder, make_parakeet(folder)


def compiled(folder: Path, output: Path, target: str, **options: Any) -> Bundle:
    """Without kernels for numpy."""
    on_device = target != "numpy"
    asked = {"target": target if on_device else "webgpu", "quantization": "f32", "context": CONTEXT, **options}
    with kernels_of_models() if on_device else without_kernels():
        compile_model(str(folder), output, CompileOptions(**asked))
    return open_bundle(output)


def frames_of(count: int) -> FloatArray:
    frames: FloatArray = np.random.default_rng(count).normal(size=(count, MELS)).astype(np.float32)
    return frames


def expected(model: Any, frames: FloatArray) -> FloatArray:
    """transformers' scores of the rows of a window, behind whose end its processor adds a frame that is masked."""
    import torch

    padded = torch.tensor(np.pad(frames, ((0, 1), (0, 0))))
    mask = torch.ones(1, len(padded), dtype=torch.bool)
    mask[0, -1] = False
    with torch.no_grad():
        scores: FloatArray = model(input_features=padded[None], attention_mask=mask).logits[0].numpy()
    return scores[: -(-len(frames) // 8)]


@pytest.mark.parametrize(
    "target", ["numpy", "webgpu", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("cpu", "cuda"))]
)
def test_scores_are_those_of_transformers(
    target: str, parakeet: tuple[Path, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder, model = parakeet
    emulated = emulation_for(target, request)
    bundle = compiled(folder, tmp_path / "bundle", target)
    runner = open_on(target, bundle, LIMITS, "float32", emulated)
    assert isinstance(runner, PlanRunner)
    conformer = bundle.manifest.spec.conformer
    assert conformer is not None
    windows = [frames_of(count) for count in WINDOWS]
    scores = [expected(model, frames) for frames in windows]
    try:
        check_runner(runner, runner.manifest)
        for frames, own in zip(windows, scores, strict=True):
            assert relative_error(runner.embed(frames_batch([frames], conformer)), own) < F32
        together = runner.embed(frames_batch(windows[1:4], conformer))
        assert relative_error(together, np.concatenate(scores[1:4])) < F32
    finally:
        runner.close()


@pytest.mark.parametrize("changes", [{"attention_bias": False, "convolution_bias": False, "scale_input": False}])
def test_a_model_without_biases_has_zeros(changes: dict[str, Any], tmp_path: Path) -> None:
    model = make_parakeet(tmp_path, **changes)
    bundle = compiled(tmp_path, tmp_path / "bundle", "webgpu")
    runner, conformer = open_on("numpy", bundle, LIMITS, "float32", None), bundle.manifest.spec.conformer
    assert conformer is not None
    frames = frames_of(51)
    assert relative_error(runner.embed(frames_batch([frames], conformer)), expected(model, frames)) < F32
