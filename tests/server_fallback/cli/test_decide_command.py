"""nearfar decide: decisions about a text, a calibration that is fitted and used, and the errors of both."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nearfar.compiler.cli import main
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.server_fallback.cli import decide
from nearfar.server_fallback.executors import local_recipe
from nearfar.server_fallback.schema.decide import DecideRequest

CONFORMANCE = Path(__file__).parents[2] / "conformance"

QUESTIONS: dict[str, Any] = {
    "room": {"type": "choice", "question": "room?", "choices": ["a", "b", "c"]},
    "lit": {"type": "yes_no", "question": "lit?"},
    "tags": {"type": "labels", "question": "{}?", "labels": ["x", "y"]},
}


@pytest.fixture
def command(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(local_recipe, "open_runner", lambda _, bundle, limits: ReferenceRunner(bundle, limits=limits))
    questions = tmp_path / "questions.json"
    questions.write_text(json.dumps(QUESTIONS))
    return ["decide", str(tiny_bundle), "--questions", str(questions)]


def test_a_calibration_that_is_fitted_changes_the_next_decisions(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {"context": f"go {index}", "answers": {"room": "b", "tags": ["x"], **({"lit": True} if index else {})}}
        for index in range(4)
    ]
    examples, calibration = tmp_path / "examples.jsonl", tmp_path / "calibration.json"
    examples.write_text("\n".join(map(json.dumps, lines)))
    assert main([*command, "go 0", "--json"]) == 0
    before = json.loads(capsys.readouterr().out)["decisions"]
    assert main([*command, "--fit", str(examples), "-o", str(calibration), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["questions"]
    assert {name: each["examples"] for name, each in figures.items()} == {"room": 4, "lit": 3, "tags": 4}
    assert figures["room"]["after"]["right"] == 1
    fitted = json.loads(calibration.read_text())
    assert set(fitted["questions"]) == {"room", "lit", "tags/x", "tags/y"}
    # The page and every server know the model by its manifest's name.
    assert fitted["model"] == json.loads((Path(command[1]) / "manifest.json").read_text())["model"]
    assert main([*command, "go 0", "--calibration", str(calibration), "--json"]) == 0
    after = json.loads(capsys.readouterr().out)["decisions"]
    assert after["room"]["probabilities"]["b"] > before["room"]["probabilities"]["b"]
    # Answers are computed in batches, whose sizes change the last digits.
    assert after["room"]["logprobs"][0] == pytest.approx(before["room"]["logprobs"][0], abs=1e-3)
    assert main([*command, "go 0", "--calibration", str(calibration), "--abstain-below", "1"]) == 0
    table = capsys.readouterr().out
    assert "unsure" in table
    assert "0." in table


def test_the_file_that_pages_read_is_the_one_that_is_written(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = json.loads((CONFORMANCE / "decision_calibration.json").read_text())
    (tmp_path / "questions.json").write_text(json.dumps(vectors["questions"]))
    examples = tmp_path / "examples.jsonl"
    examples.write_text(
        "\n".join(json.dumps({"context": "go", "answers": each["answers"]}) for each in vectors["examples"])
    )

    async def decided(_: object, requests: Sequence[DecideRequest]) -> list[SimpleNamespace]:
        assert len(requests) == len(vectors["examples"])
        answers = [
            {name: {"logprobs": rows} for name, rows in each["logprobs"].items()} for each in vectors["examples"]
        ]
        return [
            SimpleNamespace(calibration_model="fake", model_dump=lambda each=each: {"decisions": each})
            for each in answers
        ]

    monkeypatch.setattr(decide, "decide_all", decided)
    monkeypatch.setattr(decide, "figures_of", lambda *_: None)
    assert main([*command, "--fit", str(examples), "-o", str(tmp_path / "fitted.json"), "--json"]) == 0
    written = json.loads((tmp_path / "fitted.json").read_text())
    assert {**written, "questions": None} == {**vectors["file"], "questions": None}
    assert written["questions"].keys() == vectors["file"]["questions"].keys()
    for name, scaling in vectors["file"]["questions"].items():
        assert written["questions"][name]["temperature"] == pytest.approx(scaling["temperature"], rel=1e-6)
        assert written["questions"][name]["bias"] == pytest.approx(scaling["bias"], abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["go", "--fit", "examples.jsonl"], "--fit and -o belong together"),
        (["go", "-o", "calibration.json"], "--fit and -o belong together"),
        (["go", "--fit", "examples.jsonl", "-o", "calibration.json"], "leave out the text"),
        (["--fit", "empty.jsonl", "-o", "calibration.json"], "has no example"),
        (["--fit", "wrong.jsonl", "-o", "calibration.json"], "examples[0].answers.rooms answers no question"),
        (["-"], "the text on standard input is empty"),
        ([""], "the text is empty; pass a text"),
        (["go", "--calibration", "missing.json"], "cannot be read"),
        (["go", "--calibration", "wrong.jsonl"], "it must have a calibration of nearfar decide --fit"),
    ],
)
def test_what_cannot_be_decided_is_refused_by_name(
    command: list[str],
    tmp_path: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "wrong.jsonl").write_text('{"context": "go", "answers": {"rooms": "b"}}')
    assert main([*command, *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "calibration.json").exists()
