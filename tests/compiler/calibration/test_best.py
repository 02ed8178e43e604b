"""--quality best on tiny checkpoints: nearer to the original than rounding at equal bits, resumable, and right on every
runner.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_target import PlainTarget
from ragged import chunked_logits
from tiny_models import make_checkpoint
from tolerances import F32, relative_error

from nearfar.compiler.calibration import best, samples
from nearfar.compiler.calibration.best import Quantized, quantize_best
from nearfar.compiler.calibration.record import read_record
from nearfar.compiler.calibration.samples import Sample, generated_sample, read_sample
from nearfar.compiler.cli import main
from nearfar.compiler.formats import Checkpoint, load
from nearfar.compiler.formats.checkpoint import StoredMatrix
from nearfar.compiler.measure.checkpoint_reference import CheckpointReference
from nearfar.compiler.measure.quality import CheckpointCandidate, measure
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any, compile_model
from nearfar.compiler.quant import by_name
from nearfar.compiler.runtime.errors import CheckpointError, RequestError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.targets.cpu.runner import CpuRunner

WINDOW = 64
BITS = 4.5
LIMITS = Limits(tokens=75, rows=75, pages=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of one layer, whose rows are whole groups."""
    folder = tmp_path_factory.mktemp("best") / "qwen2"
    make_checkpoint("qwen2_wide", folder, num_hidden_layers=1)
    return folder


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Checkpoint:
    return load(str(folder))


@pytest.fixture(scope="module")
def sample() -> Sample:
    tokens = np.random.default_rng(1).integers(0, 500, (24, WINDOW))
    return Sample(tokens.tolist(), WINDOW, "random")


@pytest.fixture(autouse=True)
def few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best, "EPOCHS", 2)


@pytest.fixture(scope="module")
def quantized(checkpoint: Checkpoint, sample: Sample) -> Quantized:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(best, "EPOCHS", 2)
        return quantize_best(checkpoint, sample, BITS, None)[0]


def rows_of(planes: Mapping[str, np.ndarray], start: int, stop: int) -> dict[str, np.ndarray]:
    return {name: plane[start:stop] for name, plane in planes.items()}


def divergence(checkpoint: Checkpoint, other: Checkpoint) -> float:
    windows = np.random.default_rng(2).integers(0, 500, (8, WINDOW)).tolist()
    reference, own = (CheckpointReference(each, WINDOW) for each in (checkpoint, other))
    candidate = CheckpointCandidate(own, list(own.hidden(windows)))
    return measure(candidate, reference, windows, list(reference.hidden(windows))).kl_mean


def test_the_divergence_is_below_that_of_rounding_at_equal_bits(checkpoint: Checkpoint, quantized: Quantized) -> None:
    q4 = by_name("q4f16")
    rounded: dict[str, StoredMatrix] = {}
    for name, tensor in checkpoint.tensors.items():
        if len(tensor.shape) == 2:
            planes = q4.pack(tensor.rows(0, tensor.shape[0]))
            rounded[name] = StoredMatrix(name, (tensor.shape[0], tensor.shape[1]), q4, partial(rows_of, planes))
    plain = divergence(checkpoint, replace(checkpoint, tensors={**checkpoint.tensors, **rounded}))
    assert divergence(checkpoint, quantized.checkpoint(checkpoint)) < 0.6 * plain
    assert quantized.record.tuned_divergence is not None
    assert quantized.record.fitted_divergence is not None
    assert quantized.record.tuned_divergence < quantized.record.fitted_divergence


def test_the_budget_is_met_by_what_is_stored(quantized: Quantized) -> None:
    matrices = [each for each in quantized.tensors.values() if isinstance(each, StoredMatrix)]
    size = sum(plane.nbytes for each in matrices for plane in each.planes(0, each.shape[0]).values())
    bits = 8 * size / sum(each.shape[0] * each.shape[1] for each in matrices)
    assert BITS - 0.2 < bits <= BITS
    assert quantized.record.bits == pytest.approx(bits, abs=1e-3)
    assert quantized.record.formats == {each.name: each.form.name for each in matrices}


class Stopped(Exception):
    pass


@pytest.mark.parametrize("phase", ["fit", pytest.param("tune", marks=pytest.mark.exhaustive)])
def test_an_interrupted_calibration_continues_with_the_same_result(
    phase: str, checkpoint: Checkpoint, sample: Sample, quantized: Quantized, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def stop(now: str, done: int, total: int) -> None:
        if now == phase and done > total / 2:
            raise Stopped

    with pytest.raises(Stopped):
        quantize_best(checkpoint, sample, BITS, tmp_path / "bundle", stop)
    fits = count_calls(monkeypatch, "fit")
    continued, finished = quantize_best(checkpoint, sample, BITS, tmp_path / "bundle")
    assert 0 < len(fits) < len(continued.record.formats) if phase == "fit" else not fits
    assert continued.record == quantized.record
    for name, tensor in quantized.tensors.items():
        assert np.array_equal(continued.tensors[name].rows(0, 2), tensor.rows(0, 2)), name
    # Another budget is another job, and takes the place of the first.
    with pytest.raises(Stopped):
        quantize_best(checkpoint, sample, 4.0, tmp_path / "bundle", stop)
    assert finished.get("importance") is None
    assert len(list(tmp_path.iterdir())) == 1


def count_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> list[object]:
    calls: list[object] = []
    original = getattr(best, name)

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(best, name, counted)
    return calls


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompileOptions:
    """For a bundle of few bits, so that it has few formats, each with its own kernels."""
    text = tmp_path / "text.txt"
    text.write_text("".join(chr(97 + each) for each in np.random.default_rng(3).integers(0, 26, 2000)))
    monkeypatch.setattr(samples, "TOKENS", 1024)
    return CompileOptions(
        target="cpu", quality="best", bits=2.8, calibration=text, context=128, activations=("float32",)
    )


def test_a_bundle_computes_with_the_fitted_weights_and_records_how_they_were_made(
    folder: Path, tmp_path: Path, options: CompileOptions, prompt_token_ids: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("nearfar.compiler.pipeline.compile.load_target", lambda _: PlainTarget())
    found: list[Quantized] = []

    def quantize(*arguments: Any) -> Any:
        result = quantize_best(*arguments)
        found.append(result[0])
        return result

    monkeypatch.setattr(best, "quantize_best", quantize)
    output = tmp_path / "bundle"
    bundle = compile_model(str(folder), output, replace(options, target="webgpu"))
    fitted = CheckpointReference(found[0].checkpoint(load(str(folder))), 128)
    (rows,) = fitted.hidden([prompt_token_ids])
    on_numpy = chunked_logits(ReferenceRunner(bundle, limits=LIMITS), prompt_token_ids, 75)
    assert relative_error(on_numpy, fitted.logits(rows)) < F32
    record = json.loads((output / "quality.json").read_text())
    assert record["budget"] == 2.8
    assert record["bits"] <= 2.8
    assert len(set(record["formats"].values())) > 1
    assert record["calibration"] == "text.txt"
    assert 900 < record["calibration_tokens"] <= 1024
    assert "quality.json" in [entry.file for entry in bundle.manifest.files]
    bundle.verify()
    assert read_record(bundle) == found[0].record
    # What was finished is gone.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "text.txt"]


# compiler/formats has the weights that such checkpoints are read as, and the tests above what is fitted.
@pytest.mark.exhaustive
def test_a_quantized_checkpoint_is_fitted_again_on_request(
    checkpoint: Checkpoint, quantized: Quantized, tmp_path: Path, options: CompileOptions,
    prompt_token_ids: list[int], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    source = quantized.checkpoint(checkpoint)
    monkeypatch.setattr("nearfar.compiler.pipeline.compile.load_target", lambda _: PlainTarget())
    monkeypatch.setattr("nearfar.compiler.pipeline.compile.load", lambda *_, **__: source)
    bundle = compile_model("model", tmp_path / "bundle", replace(options, target="webgpu", requantize=True, bits=8.25))
    record = read_record(bundle)
    assert record is not None
    # The source has 4.46 bits, so formats that hold its codes fit the budget.
    assert record.expected_divergence < 1e-4 < quantized.record.expected_divergence
    reference = CheckpointReference(source, 128)
    (rows,) = reference.hidden([prompt_token_ids])
    expected = reference.logits(rows)
    found = chunked_logits(ReferenceRunner(bundle, limits=LIMITS), prompt_token_ids, 75)
    assert relative_error(found, expected) < 0.03


@pytest.mark.exhaustive
def test_a_bundle_gives_the_logits_of_numpy_on_the_cpu(
    folder: Path, tmp_path: Path, options: CompileOptions, prompt_token_ids: list[int]
) -> None:
    bundle = compile_model(str(folder), tmp_path / "bundle", options)
    runner = CpuRunner(bundle, limits=LIMITS)
    on_cpu = chunked_logits(runner, prompt_token_ids, 75)
    runner.close()
    assert relative_error(on_cpu, chunked_logits(ReferenceRunner(bundle, limits=LIMITS), prompt_token_ids, 75)) < F32


def test_a_model_continues_texts_up_to_their_end(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "TOKENS", 3000)
    ends = (5, 6, 7)
    ending = replace(checkpoint, spec=replace(checkpoint.spec, eos_token_ids=ends))
    made = generated_sample(ending)
    assert 2500 < made.tokens <= 3100
    assert all(len(each) <= made.window for each in made.windows)
    stopped = [each for each in made.windows if each[-1] in ends]
    # A lead may contain the token of an end.
    assert stopped
    assert all(token not in ends for each in made.windows for token in each[samples.LEAD_TOKENS : -1])
    assert generated_sample(ending).sha256 == made.sha256


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), ("  \n", "is empty"), ("a short text", r"has \d+ tokens; pass a text of at least 1024")],
)
def test_a_calibration_text_that_says_too_little_is_refused(
    content: str | None, message: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_text(content)
    with pytest.raises(RequestError, match=message):
        read_sample(checkpoint, file)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quality": "best", "quantization": "q4f16"}, "--quantization q4f16: --quality best chooses"),
        ({"bits": 4.0}, "--bits 4.0: is for --quality best"),
        ({"calibration": Path("a.txt")}, "--calibration a.txt: is for --quality best"),
        ({"quality": "best", "target": "onnx"}, "--quality: target onnx does not support"),
        ({"quality": "best", "target": "mlx"}, "--quality: target mlx does not support"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: Mapping[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=message):
        compile_any(str(folder), tmp_path / "bundle", CompileOptions(**options))


def test_a_budget_that_cannot_be_met_leaves_nothing_but_what_a_new_budget_replaces(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearfar.compiler.pipeline.compile.load_target", lambda _: PlainTarget())
    text = tmp_path / "text.txt"
    text.write_text("word " * 400)
    options = CompileOptions(quality="best", bits=1.5, calibration=text, context=64)
    with pytest.raises(RequestError, match=r"--bits 1\.5: cannot be met: .* between 2"):
        compile_model(str(folder), tmp_path / "bundle", options)
    assert not (tmp_path / "bundle").exists()


def test_quantized_checkpoints_are_refused(
    tmp_path: Path, checkpoint: Checkpoint, quantized: Quantized, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = CompileOptions(quality="best")
    monkeypatch.setattr("nearfar.compiler.pipeline.compile.load", lambda *_, **__: quantized.checkpoint(checkpoint))
    with pytest.raises(CheckpointError, match=r"already quantized .*, or add --requantize"):
        compile_model("model", tmp_path / "bundle", options)


def test_a_dry_run_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(folder), "--quality", "best", "--dry-run"])
    assert "sizes are unknown" in capsys.readouterr().err
