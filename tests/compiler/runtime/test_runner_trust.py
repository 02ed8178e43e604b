"""A runner whose results differ from the reference is not used, and lists of variants are never mixed up."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_models import make_checkpoint
from tolerances import F16, relative_error

from nearfar.compiler.bundle.entries import SelfTestEntry, SelfTestRow
from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.cli import main
from nearfar.compiler.ir.ops import OPS, Array
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.compiler.runtime.generate import score
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.trust import largest_deviation, require_close

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]


@pytest.mark.parametrize(
    ("target", "lora_rank"), [("webgpu", 0), pytest.param("cpu", 0, marks=pytest.mark.exhaustive), ("cpu", 2)]
)
def test_projections_of_equal_shape_keep_kernels_of_their_own(
    target: str, lora_rank: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The output and the down projection have 72 rows of 144 columns, but read different dtypes. With adapters, the
    joint q, k and v projection has as many rows as the joint gate and up projection, but writes another dtype.
    """
    request.getfixturevalue("vulkan" if target == "webgpu" else "compiled_once")
    make_checkpoint("qwen3", tmp_path / "checkpoint", intermediate_size=144)
    bundle = compile_model(
        str(tmp_path / "checkpoint"),
        tmp_path / "bundle",
        CompileOptions(target=target, context=64, lora_rank=lora_rank),
    )
    runner = open_runner(target, bundle, Limits(rows=len(TOKENS)))
    (found,) = score(runner, TOKENS, len(TOKENS))
    (expected,) = score(ReferenceRunner(bundle), TOKENS, len(TOKENS))
    assert relative_error(found, expected) < F16
    runner.close()


def with_wrong_rotation(bundle: Bundle, folder: Path) -> Path:
    """The bundle with other angles of its rotations than those that its expected logits were computed with."""
    shutil.copytree(bundle.path, folder)
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    assert text.count('"inverse_frequencies":[1.0,') == 1
    manifest.write_text(text.replace('"inverse_frequencies":[1.0,', '"inverse_frequencies":[3.0,'))
    return folder


def test_a_runner_that_computes_something_else_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    wrong = open_bundle(with_wrong_rotation(open_bundle(tiny_bundle), tmp_path / "wrong"))
    with pytest.raises(DeviceError, match=r"computes .* incorrectly: the logits are off by .* at most .* is rounding"):
        open_runner("numpy", wrong, Limits())


@pytest.mark.parametrize(
    ("activation", "advice"), [("float32", "for another --target$"), ("int8", "without int8 in --activations$")]
)
def test_a_refusal_says_what_to_change_about_the_bundle(activation: str, advice: str) -> None:
    manifest = SimpleNamespace(model="tiny")
    runner: Any = SimpleNamespace(device="a device", manifest=manifest, activation=activation)
    with pytest.raises(DeviceError, match=advice):
        require_close(runner, "logits", 0.06, {"float32": 0.001, "int8": 0.05})


def test_score_and_run_fail_on_it(tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = str(with_wrong_rotation(open_bundle(tiny_bundle), tmp_path / "wrong"))
    output = tmp_path / "logits.npy"
    assert main(["score", wrong, "--tokens", "1,2,3", "-o", str(output), "--runner", "numpy"]) != 0
    assert not output.exists()
    assert main(["run", wrong, "hello", "--runner", "numpy"]) != 0
    assert "incorrectly" in capsys.readouterr().err


def test_logits_that_are_not_finite_are_an_error(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linear = OPS["linear"]

    def spoiled(inputs: Mapping[str, Array], attrs: Mapping[str, Any]) -> Array:
        result = linear.run(inputs, attrs)
        assert result is not None
        spoilt: Array = result * np.float32("nan")
        return spoilt

    bundle = open_bundle(tiny_bundle)
    runner = ReferenceRunner(bundle)
    monkeypatch.setitem(OPS, "linear", dataclasses.replace(linear, compute=spoiled))
    with pytest.raises(DeviceError, match="not finite"):
        list(score(runner, TOKENS, len(TOKENS)))
    with pytest.raises(DeviceError, match="incorrectly: the logits are not finite"):
        open_runner("numpy", bundle, Limits())


@pytest.mark.parametrize("limits", [Limits(tokens=1), Limits(tokens=7, rows=3), Limits(tokens=64, rows=64)])
def test_every_size_of_runner_passes_the_self_test(limits: Limits, tiny_bundle: Path) -> None:
    open_runner("numpy", open_bundle(tiny_bundle), limits).close()


class FixedRunner:
    """Computes the same logits (V,) for every sampled row."""

    limits = Limits(tokens=64, rows=64)

    def __init__(self, logits: list[float]) -> None:
        self._logits = np.array(logits, np.float32)

    def forward(self, batch: Any) -> Any:
        return SimpleNamespace(logits=np.tile(self._logits, (len(batch.sample_rows), 1)))


def test_logits_of_tokens_that_the_self_test_does_not_list_are_compared_as_well() -> None:
    logits = [4.0, 2.0, 1.0, 0.5]
    total = float(np.log(np.exp(logits).sum()))
    rows = [SelfTestRow(row=row, token_ids=[0, 1], logits=logits[:2], logsumexp=total) for row in range(4)]
    test = SelfTestEntry(prompt_ids=[1, 2, 3, 1], rows=rows, tolerances={"float32": 0.001})

    def deviation(computed: list[float]) -> float:
        return largest_deviation(FixedRunner(computed), test, 16)  # type: ignore[arg-type]

    assert deviation(logits) < 1e-6
    assert deviation([4.0, 2.5, 1.0, 0.5]) == pytest.approx(0.125)
    # The last token shows in the sum over all tokens, relative to the largest logit.
    wrong = [*logits[:3], 4.0]
    assert deviation(wrong) == pytest.approx((np.log(np.exp(wrong).sum()) - total) / 4, rel=1e-5)
    assert deviation([4.0, 2.0, float("nan"), 0.5]) == float("inf")
