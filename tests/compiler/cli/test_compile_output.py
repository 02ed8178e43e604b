"""The output of `nearfar compile`: its phases, the command to try, and the dry run."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from decoder_families import make_family
from light_bundle import few_kernels
from terminal import on_a_terminal

from nearfar.compiler.bundle.folder import Bundle, ExportBundle, open_any
from nearfar.compiler.bundle.probe import PROBE_FILE
from nearfar.compiler.cli import main, phases, trial
from nearfar.compiler.measure.dry_run import dry_run
from nearfar.compiler.measure.report import make_export_report, make_report
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.runtime.errors import DeviceError

CompileTiny = Callable[..., Path]
NEARFAR = [sys.executable, "-m", "nearfar.compiler.cli"]
# A shell must not interpret any part of this name.
AWKWARD = 'it\'s a "bundle" $HOME'


def trial_line(printed: str) -> str:
    line = printed.splitlines()[-1]
    assert line.startswith("try it:  ")
    return line.removeprefix("try it:  ")


def run_line(line: str, folder: Path) -> str:
    result = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, (line, result.stderr)
    return result.stdout


def test_in_a_pipe_the_phases_are_lines_and_add_up(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compile", str(tiny_checkpoints["qwen3"]), "--activations", "float32", "--quantization", "f32"]
    assert main([*arguments, "-o", str(tmp_path / "a")]) == 0
    printed = capsys.readouterr()
    names = (
        "loading compiler",
        "reading model",
        "building graph",
        "lowering kernels",
        "packing weights",
        "running reference",
    )
    assert [line[:17].rstrip() for line in printed.err.splitlines()] == list(names)
    assert all(" s, processor " in line for line in printed.err.splitlines())
    table = [line.split("  ")[1] for line in printed.out.splitlines() if line.startswith("  ")]
    # On a busy machine, a line says how much of it was spent waiting.
    assert table[: len(names) + 2] == ["phase", *names, "total"]
    assert main([*arguments, "-o", str(tmp_path / "b"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [phases.PHASES[phase] for phase in result["phases"]] == list(names)
    for key in ("seconds", "processor_seconds"):
        assert sum(phase[key] for phase in result["phases"].values()) == pytest.approx(result[key], abs=0.01)
    assert main([*arguments, "-o", str(tmp_path / "b"), "--json"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_each_phase_ends_when_the_next_begins() -> None:
    ended: list[str] = []
    clock = phases.PhaseClock(ended=lambda phase, _: ended.append(phase))
    for phase, done in (("read", 0), ("kernels", 0), ("kernels", 5), ("weights", 1)):
        clock.progress(phase, done, 5)
    assert ended == ["start", "read", "kernels"]
    clock.finish()
    assert list(clock.durations) == ["start", "read", "kernels", "weights"]
    assert phases.waiting(phases.Duration(10.0, 9.0)) is None
    assert phases.waiting(phases.Duration(0.9, 0.0)) is None
    assert (
        phases.waiting(phases.Duration(10.0, 4.0))
        == "6.0 s of this was spent waiting for other programs, the disk or the network"
    )


def test_a_phase_of_unknown_length_ends_with_the_next() -> None:
    with phases.progress_bars() as bars:
        progress = phases.phases(bars)
        progress("copy", 0, 0)
        assert not bars.tasks[0].finished
        progress("copy", 5, 10)
        progress("read", 0, 0)
        progress("graph", 1, 2)
        assert [(task.description, task.finished) for task in bars.tasks] == [
            ("copying", False), ("reading model", True), ("building graph", False),
        ]  # fmt: skip


def test_bars_with_the_longest_name_of_a_phase_fit_into_80_columns() -> None:
    assert len("running reference") == phases.NAME_WIDTH


def test_on_a_terminal_the_phases_are_bars_within_80_columns(tmp_path: Path) -> None:
    with on_a_terminal([*NEARFAR, "compile", "demo", "--target", "mlx", "-o", "out"], tmp_path) as (terminal, process):
        terminal.read_to_the_end()
        assert process.wait() == 0
    assert "packing weights   ━" in terminal.text
    lines = [line for line in terminal.text.replace("\r", "\n").splitlines() if not line.startswith("try it:")]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("target", [pytest.param("onnx", marks=pytest.mark.exhaustive), "mlx"])
def test_the_printed_command_runs_for_any_path(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / AWKWARD
    assert main(["compile", "demo", "--target", target, "-o", str(output)]) == 0
    line = trial_line(capsys.readouterr().out)
    assert shlex.split(line)[-3:] == ["run", str(output), "hello"]
    assert run_line(line, tmp_path).strip()


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", ["webgpu", "cpu", "cuda"])
def test_the_printed_command_runs_for_every_target(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue({"webgpu": "vulkan", "cuda": "nvrtc"}.get(target, "tmp_path"))
    output = tmp_path / AWKWARD
    assert main(["compile", "demo", "--target", target, "-o", str(output)]) == 0
    assert run_line(trial_line(capsys.readouterr().out), tmp_path).strip()


def test_a_model_without_a_chat_template_is_tried_raw(light_demo: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(light_demo, tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["tokenizer"] |= {"chat_template": None, "chat_tree": None}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    found = trial.find_trial(open_any(copy))
    assert "--raw" in shlex.split(found.command)
    words = shlex.split(found.command)
    assert main([*words[words.index("run") :], "--max-tokens", "2"]) == 0


def test_a_bundle_that_this_machine_cannot_run_is_tried_in_numpy_or_inspected(
    light_demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(bundle: Bundle | ExportBundle) -> None:
        raise DeviceError(f"{bundle.path}: there is no GPU")

    monkeypatch.setattr(trial, "check_machine", lacks)
    small = trial.find_trial(open_any(light_demo))
    assert small.reason == f"this machine cannot run the bundle: {light_demo}: there is no GPU"
    words = shlex.split(small.command)
    assert words[-3:] == ["--runner", "numpy", "hello"]
    assert main([*words[words.index("run") :], "--max-tokens", "2"]) == 0
    monkeypatch.setattr(trial, "NUMPY_BYTES", 10)
    large = shlex.split(trial.find_trial(open_any(light_demo)).command)
    assert large[-2:] == ["inspect", str(light_demo)]
    assert main(large[-2:]) == 0


def test_a_graph_for_another_device_is_inspected(export_onnx: CompileTiny) -> None:
    found = trial.find_trial(open_any(export_onnx("qwen3", "f32", device="webgpu")))
    assert "uses only ONNX Runtime's CPU provider" in str(found.reason)
    assert shlex.split(found.command)[-2] == "inspect"


# Importing mlx-lm takes 5 s; targets/mlx/test_mlx_lm.py runs folders with it.
@pytest.mark.parametrize("runs", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_what_our_mlx_runner_does_not_compute_is_tried_with_mlx_lm(
    runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, output = tmp_path / "checkpoint", tmp_path / AWKWARD
    make_family("lfm2", folder, hidden_size=96, intermediate_size=96, num_attention_heads=6)
    compile_any(str(folder), output, CompileOptions(target="mlx", quantization="f32"))
    found = trial.find_trial(open_any(output))
    assert "causal_conv, which the MLX runner does not compute" in str(found.reason)
    assert str(output) in shlex.split(found.command)
    assert "mlx_lm" in found.command
    assert not runs or run_line(f"{found.command} --max-tokens 2", tmp_path).strip()
    monkeypatch.setattr(trial, "find_spec", lambda _: None)
    assert shlex.split(trial.find_trial(open_any(output)).command)[-2:] == ["inspect", str(output)]
    capsys.readouterr()
    assert main(["inspect", str(output)]) == 0
    assert "per sequence, of any length" in capsys.readouterr().out


def test_an_embedding_bundle_is_served_or_inspected(
    compile_light: CompileTiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = open_any(compile_light("embedding", "f32"))
    monkeypatch.setattr(trial, "check_machine", lambda _: None)
    assert shlex.split(trial.find_trial(bundle).command)[-2:] == ["serve", str(bundle.path)]
    monkeypatch.setattr(trial, "find_spec", lambda _: None)
    assert shlex.split(trial.find_trial(bundle).command)[-2:] == ["inspect", str(bundle.path)]
    assert main(["inspect", str(bundle.path)]) == 0
    printed = capsys.readouterr().out
    assert "KV cache" not in printed
    assert "tool calls" not in printed


def equal_sizes(model: str, output: Path, options: CompileOptions) -> None:
    """A dry run reports exactly the files that a compile with the same options writes, and writes nothing itself."""
    planned = dry_run(model, options)
    assert not output.exists()
    bundle = compile_any(model, output, options)
    files = {str(path.relative_to(output)): path.stat().st_size for path in output.rglob("*") if path.is_file()}
    if planned.has_self_test:
        # Subtract the self-test, which is "null" in a dry run.
        assert isinstance(bundle, Bundle)
        test = bundle.manifest.self_test or bundle.manifest.vector_test
        assert test is not None
        text = json.dumps(test.model_dump(mode="json"), separators=(",", ":"))
        files["manifest.json"] -= len(text) - len("null")
        # A dry run computes no reference, of which the probe too has one.
        probe = next((entry for entry in bundle.manifest.files if entry.file == PROBE_FILE), None)
        if probe is not None:
            assert files.pop(PROBE_FILE) == probe.size
            files["manifest.json"] -= len("," + json.dumps(probe.model_dump(), separators=(",", ":")))
    assert planned.sizes == files
    report = make_report(bundle.manifest) if isinstance(bundle, Bundle) else make_export_report(bundle.manifest)
    assert planned.report == report


SHORT: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"quantization": "q4f16"}),
    ("llama", {"quantization": "q8f16", "kv": "q8", "activations": ("float32",)}),
    ("embedding", {"quantization": "f32"}),
]


@pytest.mark.parametrize(("checkpoint", "options"), SHORT)
def test_a_dry_run_reports_what_the_compile_writes(
    checkpoint: str, options: dict[str, Any], tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    with few_kernels():
        equal_sizes(str(tiny_checkpoints[checkpoint]), tmp_path / "bundle", CompileOptions(context=256, **options))


@pytest.mark.parametrize("target", ["onnx", "mlx"])
@pytest.mark.parametrize(
    "options", [{"quantization": "q4f16"}, {"quantization": "q8f16", "kv": "q8"}, {"quantization": "f16"}]
)
def test_a_dry_run_reports_what_the_export_writes(target: str, options: dict[str, Any], tmp_path: Path) -> None:
    from nearfar.compiler.demo import CHECKPOINT

    equal_sizes(str(CHECKPOINT), tmp_path / "bundle", CompileOptions(target=target, **options))


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("quantization", ["q4f16", "f32"])
def test_a_dry_run_reports_what_the_compile_writes_for_native_targets(
    target: str, quantization: str, tiny_checkpoints: Mapping[str, Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if target == "cuda":
        request.getfixturevalue("nvrtc")
    options = CompileOptions(target=target, quantization=quantization, context=256, lora_rank=4)
    equal_sizes(str(tiny_checkpoints["qwen3"]), tmp_path / "bundle", options)


def test_the_dry_run_prints_a_table_and_an_estimate_and_leaves_nothing(
    tiny_checkpoints: Mapping[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    arguments = ["compile", str(tiny_checkpoints["qwen3"]), "--dry-run", "--context", "256"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    for words in ("dispatches", "memory", "time (estimate)", "from a sample of", "nothing was written"):
        assert words in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    estimate = result["estimate"]
    assert estimate["elements"] == result["parameters"]
    assert result["bytes"] == sum(result["file_bytes"].values())
    measured = sum(phase["seconds"] for phase in result["phases"].values())
    assert result["estimated_seconds"] == pytest.approx(
        measured + estimate["weights_seconds"] + estimate["self_test_seconds"], abs=0.01
    )
    assert list(tmp_path.iterdir()) == []
    assert main(["compile", str(tiny_checkpoints["qwen3"])]) == 2
    assert "-o BUNDLE is missing" in capsys.readouterr().err
