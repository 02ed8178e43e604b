"""nearfar devices: reports become a table and a plot, and files that are none are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from nearfar.compiler.bundle.device_report import DeviceReport
from nearfar.compiler.cli import main
from nearfar.compiler.cli.devices import plot, read_reports


def report(model: str, adapter: str, tokens_per_second: float | None, **changes: Any) -> dict[str, Any]:
    """A report; without a speed, one that refuses."""
    runs = tokens_per_second is not None
    speed = tokens_per_second or 1.0
    refusal = {"reason": "memory", "message": "too large", "found": 1.0, "needed": 2.0}
    return {
        "format": "nearfar-probe-2",
        "date": "2026-11-29T12:00:00.000Z",
        "model": model,
        "quantization": "q4f16",
        "bundle": "0" * 64,
        "device": {
            "adapter": {"vendor": "apple", "architecture": "", "device": "", "description": adapter},
            "features": ["shader-f16"], "runs_on_cpu": False, "user_agent": "", "platforms": ["ios"],
            "memory_gb": None, "cores": 6,
        },
        "probe_ms": 900.5,
        "times": [{"step": "compile", "ms": 300.5, "runs": 0}],
        "bytes_read": 900_000,
        "test": {"state": "passed", "switched_off": [], "largest_deviation": 0.001} if runs else None,
        "measured": {
            "weight_bytes_per_second": 3.2e10, "copy_bytes_per_second": 1e11, "dispatch_us": 20.0,
            "round_trip_ms": 1.5, "sustained": 0.9,
        } if runs else None,
        "memory": {"needed": 500_000_000, "allocated": 500_000_000, "limit": None} if runs else None,
        "fit": {
            "activation": "float16", "context": 4096, "prefill_chunk": 256, "memory_budget": None,
        } if runs else None,
        "speed": {"prefill_tokens_per_second": 500.0, "decode_tokens_per_second": speed} if runs else None,
        "first_token": [
            {"prompt_tokens": tokens, "seconds": tokens / 500, "low": tokens / 600, "high": tokens / 400}
            for tokens in (16, 256)
        ] if runs else [],
        "decode": [
            {"context": 256, "tokens_per_second": speed, "low": 0.8 * speed, "high": 1.2 * speed}
        ] if runs else [],
        "encode": [],
        "refusals": [] if runs else [refusal],
        **changes,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, each in {
        "a": report("Qwen3-0.6B", "slow <phone>", 12.0),
        "b": report("Qwen3-0.6B", "fast & new", 140.0),
        "c": report("Qwen3-0.6B", "", None),
        "d": report("Gemma", "fast & new", 60.0),
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(each))
    return tmp_path


def test_reports_become_a_table_by_model_the_fastest_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "tokens per second at that context, or at the nearest length" in " ".join(printed.split())
    lines = [line.strip() for line in printed.splitlines()]
    places = [next(i for i, line in enumerate(lines) if line.startswith(text)) for text in ("Gemma", "Qwen3-0.6B")]
    assert places[0] < places[1]
    own = lines[places[1] + 1 :]
    assert own[0].startswith("fast & new")
    assert own[1].startswith("slow <phone>")
    assert "refused: memory" in " ".join(own)


def test_the_plot_has_a_row_for_each_device_that_runs(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "plot.svg"
    assert main(["devices", str(folder), "--plot", str(file), "--json"]) == 0
    root = ElementTree.fromstring(file.read_text())
    texts = [node.text or "" for node in root.iter() if node.tag.endswith("text")]
    assert [text for text in texts if "Qwen3" in text] == ["Qwen3-0.6B, fast & new", "Qwen3-0.6B, slow <phone>"]
    circles = [float(node.attrib["cx"]) for node in root.iter() if node.tag.endswith("circle")]
    # Gemma at 60, then Qwen3 at 140 and 12 tokens per second.
    assert circles[2] < circles[0] < circles[1]
    assert main(["devices", str(folder), "--plot", str(file)]) == 2


def test_a_plot_without_predictions_is_one(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(report("Qwen3-0.6B", "old", None)))
    assert ElementTree.fromstring(plot(read_reports(tmp_path)[0])).tag.endswith("svg")


def test_json_is_the_reports_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", str(folder), "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [DeviceReport.model_validate_json(line).model for line in lines] == ["Gemma", *["Qwen3-0.6B"] * 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "is not a report of the format nearfar-probe-2 (format: Field required)"),
        ("no json", "is not a report of the format nearfar-probe-2 (Invalid JSON"),
        (json.dumps(report("m", "a", 1.0, format="nearfar-bench-1")), "(format: Input should be 'nearfar-probe-2')"),
        (json.dumps(report("m", "a", 1.0, more=1)), "(more: Extra inputs are not permitted)"),
    ],
)
def test_a_file_that_is_no_report_is_named_and_left_out(
    text: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "e.json").write_text(text)
    assert main(["devices", str(folder), "--json"]) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 4
    assert "left out" in printed.err
    assert "e.json" in printed.err
    assert message in " ".join(printed.err.split())
    for file in folder.glob("[a-d].json"):
        file.unlink()
    assert main(["devices", str(folder)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_folder_without_reports_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", str(tmp_path)]) == 2
    assert "has no .json files" in " ".join(capsys.readouterr().err.split())
    assert main(["devices", str(tmp_path / "none")]) == 2
    assert "is not a folder" in " ".join(capsys.readouterr().err.split())


def test_reports_of_strangers_command_no_terminal_and_break_no_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = report("m", "wide", 1.0)
    wide["decode"][0] |= {"low": 5e-324, "high": 1.7e308}
    named = report("m\x1b[31m\0\n", "\x1b]0;title\x07\uffff<script>", 3.0)
    for name, each in {"wide": wide, "fast": report("m", "fast", 1e308), "named": named}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(each))
    rows, unread = read_reports(tmp_path)
    assert not unread
    ElementTree.fromstring(plot(rows))
    assert main(["devices", str(tmp_path)]) == 0
    assert not set(capsys.readouterr().out) & set("\x1b\x07\0")
    wide["decode"][0] |= {"low": 3.0, "high": 2.0}
    (tmp_path / "wide.json").write_text(json.dumps(wide))
    _, [problem] = read_reports(tmp_path)
    assert "1 is not between 3 and 2" in problem
