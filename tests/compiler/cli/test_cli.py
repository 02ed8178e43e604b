"""The command line as users see it: real commands on tiny bundles, their output, their errors and their exit codes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from light_bundle import few_kernels

from nearfar.compiler.bundle.folder import file_entry, open_any
from nearfar.compiler.bundle.new_folder import new_folder
from nearfar.compiler.calibration.record import QUALITY_FILE, Record
from nearfar.compiler.cli import ending_on_signals, main

CompileTiny = Callable[..., Path]
COMMANDS = ("compile", "inspect", "run", "score", "demo", "serve", "bench")


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert isinstance(result, dict)
    return result


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The message of a command that must end with exit code 2."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return " ".join(captured.err.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_shows_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main([command, "--help"])
    assert exit_info.value.code == 0
    assert f"example: nearfar {command}" in capsys.readouterr().out


def test_version_names_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("nearfar 0.")


def test_the_help_of_every_command_loads_no_slow_library() -> None:
    slow = {
        *("tvm", "torch", "wgpu", "transformers", "tokenizers", "huggingface_hub", "playwright", "numpy"),
        *("fastapi", "httpx", "uvicorn", "prometheus_client", "pydantic", "asyncio", "rich"),
    }
    code = (
        "import sys, nearfar.compiler.cli.options, nearfar.server_fallback.cli.options; "
        f"print(*sorted({slow} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == ""


def test_compile_prints_what_it_made(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, bundle = str(tiny_checkpoints["qwen3"]), tmp_path / "bundle"
    with few_kernels():
        result = run_json(capsys, "compile", checkpoint, "-o", str(bundle), "--json")
        assert result["bundle"] == str(bundle)
        assert result["bytes"] == sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
        assert main(["compile", checkpoint, "-o", str(bundle), "--force", "--quantization", "f32"]) == 0
    printed = capsys.readouterr()
    assert "lowering kernels" in printed.err
    assert "packing weights" in printed.err
    assert "try it:" in printed.out


def test_the_demo_model_is_known_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "demo"
    assert main(["compile", "demo", "--target", "onnx", "-o", str(output), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bundle"] == str(output)
    assert open_any(output).manifest.model == "nearfar-demo"


def test_compile_refuses_to_overwrite_and_names_the_option_that_replaces(
    tiny_checkpoints: Mapping[str, Path], tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = fails(capsys, "compile", str(tiny_checkpoints["qwen3"]), "-o", str(tiny_bundle))
    assert str(tiny_bundle) in message
    assert "--force" in message


def test_errors_are_json_if_json_is_requested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = fails(capsys, "compile", str(tmp_path / "missing"), "-o", str(tmp_path / "bundle"), "--json")
    error = json.loads(message)["error"]
    assert error["code"] == "checkpoint_error"
    assert "missing" in error["message"]
    assert not (tmp_path / "bundle").exists()


def test_inspect_counts_memory_and_dispatches(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, "inspect", str(tiny_bundle), "--json", "--context", "256", "--activation", "float32")
    spec = report["spec"]
    assert isinstance(spec, dict)
    # Keys and values of every layer, in float32.
    assert report["kv_bytes_per_token"] == 2 * 4 * spec["num_layers"] * spec["num_kv_heads"] * spec["head_dim"]
    # Embedding, five steps per layer, the sampled rows, the head and the sampling.
    assert report["dispatches_per_token"] == report["dispatches_at_context"] == 5 * spec["num_layers"] + 4
    shards = sum(path.stat().st_size for path in (tiny_bundle / "weights").iterdir())
    assert 0 < shards - int(str(report["weight_bytes"])) < 256 * 100, (
        "weights and the padding between planes make up the shards"
    )
    kv_bytes = int(str(report["kv_bytes_per_token"])) * 256
    assert int(str(report["runtime_memory_bytes"])) > int(str(report["weight_bytes"])) + kv_bytes


@pytest.mark.usefixtures("compiled_once")
@pytest.mark.usefixtures("compiled_once")
def test_inspect_reports_on_a_model_without_weights(
    tiny_checkpoints: Mapping[str, Path], tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(tiny_checkpoints["qwen3"] / "config.json")
    with few_kernels():
        report = run_json(capsys, "inspect", config, "--json", "--target", "cpu", "--context", "64")
    assert (report["target"], report["context"], report["quantization"]) == ("cpu", 64, "q4f16")
    assert "remove them" in fails(capsys, "inspect", config, "--verify", "--json")
    assert "--kernels is for bundles" in fails(capsys, "inspect", config, "--kernels")
    assert "is a bundle; remove them" in fails(capsys, "inspect", str(tiny_bundle), "--target", "cpu", "--json")


def test_inspect_counts_8_bit_keys_and_values(
    compile_light: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = compile_light("qwen3", "q8f16", kv="q8")
    report = run_json(capsys, "inspect", str(bundle), "--json")
    # Three layers of 3 kv heads: a key takes 24 bytes and a scale, as does a value.
    assert (report["kv"], report["kv_bytes_per_token"]) == ("q8", 3 * 3 * 2 * (24 + 4))
    assert main(["inspect", str(bundle)]) == 0
    assert "for 256 tokens, q8" in capsys.readouterr().out


def test_inspect_names_the_dtypes_in_the_order_of_the_bundle(
    compile_light: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = compile_light("qwen3", "q4f16", activations=("int8", "float16", "float32"))
    report = run_json(capsys, "inspect", str(bundle), "--json", "--activation", "float32")
    assert (report["activation"], report["activations"]) == ("float32", ["int8", "float16", "float32"])
    assert main(["inspect", str(bundle)]) == 0
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "activations int8 (offered: int8, float16, float32)" in printed
    assert "with int8, 0.5% with float16, 0.1% with float32" in printed


def test_inspect_prints_tables(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tiny_bundle), "--verify"]) == 0
    printed = capsys.readouterr().out
    for word in ("qwen3", "q4f16", "dispatches", "attention_decode", "24 tokens, logits within 0.5%"):
        assert word in printed
    assert "attention_decode_" not in printed
    assert main(["inspect", str(tiny_bundle), "--kernels"]) == 0
    assert "attention_decode_" in capsys.readouterr().out


def test_inspect_shows_how_the_best_quality_was_made(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny_bundle, tmp_path / "b")
    record = Record(
        method="gptq", budget=4.5, bits=4.4961, calibration="text.txt", calibration_sha256="00",
        calibration_tokens=32_700, formats={"a": "q4g32", "b": "q4g32", "c": "q8g64"}, expected_divergence=0.01,
        fitted_divergence=0.008, tuned_divergence=0.005,
    )  # fmt: skip
    (tmp_path / "b" / QUALITY_FILE).write_bytes(record.to_bytes())
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    manifest["files"].append(file_entry(tmp_path / "b", QUALITY_FILE).model_dump())
    (tmp_path / "b" / "manifest.json").write_text(json.dumps(manifest))
    assert run_json(capsys, "inspect", str(tmp_path / "b"), "--json")["quality"] == asdict(record)
    assert main(["inspect", str(tmp_path / "b")]) == 0
    printed = capsys.readouterr().out
    for words in ("4.4961 bits", "at most 4.5", "32,700 tokens of text.txt", "q4g32: 2, q8g64: 1", "0.005 at the end"):
        assert words in printed
    (tmp_path / "b" / QUALITY_FILE).write_text("{}")
    assert "quality.json: does not match the manifest" in fails(capsys, "inspect", str(tmp_path / "b"))


def test_inspect_refuses_a_context_longer_than_the_bundles(
    tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--context 257" in fails(capsys, "inspect", str(tiny_bundle), "--context", "257")


@pytest.mark.parametrize("runner", ["numpy", "webgpu"])
def test_run_prints_one_json_object(
    runner: str, compile_light: CompileTiny, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    if runner == "webgpu":
        request.getfixturevalue("vulkan")
    bundle = str(compile_light("qwen3"))
    arguments = ("run", bundle, "hello", "--raw", "--max-tokens", "5", "--runner", runner, "--json")
    result = run_json(capsys, *arguments)
    token_ids, timings = result["token_ids"], result["timings"]
    assert isinstance(token_ids, list)
    assert isinstance(timings, dict)
    assert len(token_ids) == 5
    assert result["finish_reason"] == "length"
    assert timings["completion_tokens"] == 5
    assert timings["prompt_tokens"] == len(result["prompt_token_ids"])  # type: ignore[arg-type]
    assert 0 < timings["time_to_first_token_seconds"] <= timings["total_seconds"]
    again = run_json(capsys, *arguments)
    assert again["token_ids"] == token_ids


def test_run_streams_the_same_text_as_the_json_output_holds(
    tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (
        "run",
        str(tiny_bundle),
        "hello",
        "--raw",
        "--max-tokens",
        "8",
        "--runner",
        "numpy",
        "--temperature",
        "1",
        "--seed",
        "7",
    )
    expected = run_json(capsys, *arguments, "--json")
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{expected['text']}\n"


def test_run_stops_within_the_context_by_itself(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = "x" * 250
    result = run_json(capsys, "run", str(tiny_bundle), prompt, "--raw", "--runner", "numpy", "--json")
    assert len(result["prompt_token_ids"]) + len(result["token_ids"]) <= 256 + 1  # type: ignore[arg-type]
    message = fails(capsys, "run", str(tiny_bundle), prompt, "--raw", "--runner", "numpy", "--max-tokens", "50")
    assert "context length is 256" in message


def test_run_names_a_corrupt_shard(tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_bundle, broken)
    shard = broken / "weights" / "00000.bin"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    message = fails(capsys, "run", str(broken), "hello", "--raw", "--runner", "numpy")
    assert "00000.bin" in message
    assert "corrupt" in message


def test_run_reports_a_path_that_is_not_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nearfar compile" in fails(capsys, "run", str(tmp_path), "hello")


def test_a_bundle_in_place_of_a_checkpoint_and_the_reverse_are_reported(
    tiny_checkpoints: Mapping[str, Path],
    compile_base: CompileTiny,
    tiny_bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint = str(tiny_checkpoints["qwen3"])
    assert f"nearfar compile {checkpoint} -o BUNDLE" in fails(
        capsys, "score", checkpoint, "--tokens", "1", "-o", str(tmp_path / "x"), "--json"
    )
    assert "is already a bundle" in fails(capsys, "compile", str(tiny_bundle), "-o", str(tmp_path / "bundle"), "--json")
    server_bundle = str(compile_base("qwen3", "f32", target="cpu", lora_rank=4))
    assert "is a bundle for cpu; compile one for browsers" in fails(capsys, "demo", server_bundle, "--serve")
    # For a bundle that accepts LoRA adapters, the report counts a request without one.
    report = run_json(capsys, "inspect", server_bundle, "--json")
    assert int(str(report["dispatches_per_token"])) > 0


@pytest.mark.parametrize("runner", ["numpy", "webgpu"])
def test_score_writes_the_logits_of_every_position(
    runner: str,
    tiny_bundle: Path,
    compile_light: CompileTiny,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    if runner == "webgpu":
        request.getfixturevalue("vulkan")
    expected = json.loads((tiny_bundle / "expected.json").read_text())
    token_ids = expected["prompt_token_ids"]
    output = tmp_path / "logits.npy"
    run_json(
        capsys,
        "score",
        str(compile_light("qwen3")),
        "--tokens",
        ",".join(map(str, token_ids)),
        "-o",
        str(output),
        "--runner",
        runner,
        "--json",
    )
    logits = np.load(output)
    assert logits.shape == (len(token_ids), 509)
    assert logits.dtype == np.float32
    assert logits[-1].argmax() == expected["token_ids"][0]


def test_score_refuses_invalid_token_lists(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "logits.npy")
    assert "1,2,3" in fails(capsys, "score", str(tiny_bundle), "--tokens", "1,two", "-o", output)
    assert "not in the vocabulary" in fails(
        capsys, "score", str(tiny_bundle), "--tokens", "1,509", "-o", output, "--runner", "numpy"
    )
    assert not Path(output).exists()


def test_a_full_output_is_reported_in_one_line_and_a_closed_pipe_not_at_all(tiny_bundle: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "nearfar.compiler.cli",
        "run",
        str(tiny_bundle),
        "hi",
        "--max-tokens",
        "2",
        "--json",
        "--runner",
        "numpy",
    ]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 2
    assert json.loads(result.stderr)["error"]["message"] == "the disk is full; free space and try again"
    nobody, output = os.pipe()
    os.close(nobody)
    result = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    os.close(output)
    assert (result.returncode, result.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_the_process_removes_half_written_files(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_until_stopped(*_: object) -> None:
        with new_folder(tmp_path / "bundle", force=False) as folder:
            (folder / "half").touch()
            os.kill(os.getpid(), number)

    monkeypatch.setattr("nearfar.compiler.cli.compile.compile_any", compile_until_stopped)
    # Under nohup, SIGHUP is ignored.
    inherited = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as exit_info:
            main(["compile", "model", "-o", str(tmp_path / "bundle")])
        assert exit_info.value.code == 128 + number
        assert list(tmp_path.iterdir()) == []
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, inherited)


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    inherited = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, inherited)


def test_score_names_the_full_disk(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = fails(
        capsys, "score", str(tiny_bundle), "--tokens", "1", "-o", "/dev/full", "--runner", "numpy", "--json"
    )
    assert "/dev/full: cannot be written: the disk is full" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compil", "m", "-o", "x"], "unknown command 'compil'; did you mean 'compile'? (known: compile, run,"),
        (["xyzzy"], "unknown command 'xyzzy' (known: compile,"),
        (
            ["compile", "m", "-o", "x", "--quantisation", "q4f16"],
            "unknown option --quantisation; did you mean --quantization?",
        ),
        (["compile", "m", "--ouput", "x"], "unknown option --ouput; did you mean --output?"),
        (["compile", "m", "-o", "x", "--xyzzy=3"], "error: unknown option --xyzzy\n"),
        (
            ["compile", "m", "-o", "x", "--target", "webgp"],
            "unknown target 'webgp'; did you mean 'webgpu'? (known: webgpu, cpu,",
        ),
        (["compile", "m", "-o", "x", "--quantization", "q4f61"], "unknown quantization 'q4f61'; did you mean 'q4f16'?"),
        (["serve", "m", "--quantization", "q3"], "unknown quantization 'q3' (known: q4f16,"),
        (["serve", "m", "--dialect", "nearfr"], "unknown dialect 'nearfr'; did you mean 'nearfar'?"),
        (
            ["gateway", "--near", "n", "--far", "f", "--policy", "p", "--far-dialect", "x"],
            "unknown far-dialect 'x' (known:",
        ),
        (["bench", "serve", "u", "--prefix-tokens", "-1"], "argument --prefix-tokens: -1 is less than 0"),
        (["bench", "serve", "u", "--body", "[1]"], "argument --body: '[1]' must be a JSON object"),
        (["compile", "m", "-o", "x", "--group-size", "33"], "unknown group-size '33'"),
        (["compile", "m", "n", "-o", "x"], "unexpected argument 'n'"),
        (["run", "b", "--", "--xyzzy", "more"], "unexpected argument 'more'"),
    ],
)
def test_the_error_for_a_mistyped_word_proposes_the_nearest_one(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


def test_the_error_for_a_mistyped_folder_proposes_the_nearest_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "Qwen3-0.6B").mkdir()
    wrong, right = str(tmp_path / "qwen-0.6B"), str(tmp_path / "Qwen3-0.6B")
    assert f"did you mean '{right}'?" in fails(capsys, "compile", wrong, "-o", str(tmp_path / "bundle"))
    assert f"{wrong}: does not exist; did you mean '{right}'?" in fails(capsys, "run", wrong, "hello")
    far = str(tmp_path / "xyzzy")
    assert f"{far}: does not exist; create it with" in fails(capsys, "run", far, "hello")
