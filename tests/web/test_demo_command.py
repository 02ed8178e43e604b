"""``nearfar demo`` from end to end, in its own process, as a user starts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nearfar.compiler.cli import main

NOTES = """# Signals

Aborting the signal ends the download at once.

# Sums

27 and 58 are added.

# Light

The kitchen is dark.
"""


@pytest.mark.usefixtures("chromium")
def test_the_demo_command_prints_a_right_answer_and_passages_and_leaves_screenshots(tmp_path: Path) -> None:
    screenshot, document = tmp_path / "demo.png", tmp_path / "notes.md"
    document.write_text(NOTES)
    command = [
        sys.executable,
        "-m",
        "nearfar.compiler.cli",
        "demo",
        "--prompt",
        "what is 27 + 58?",
        "--screenshot",
        str(screenshot),
        "--document",
        str(document),
        "--question",
        "cancel loading a model",
    ]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    printed = ended.stdout
    assert "27 + 58 = 85" in printed
    assert "tokens/s" in printed
    assert "--serve" in printed
    # No word of the question is in the passage that the encoder puts first.
    first = printed.partition("cancel loading a model")[2]
    assert "Signals" in first.partition("\n2 ")[0]
    for file in (screenshot, tmp_path / "demo-documents.png"):
        assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--policy", "policy.json"], "--far URL"),
        (["--far", "http://x", "--policy", "nowhere.json"], "the file does not exist"),
        (["--far", "localhost:8000"], "is not the URL of a server"),
        (["--encoder", "nowhere"], "add --serve"),
        (["--question", "why?"], "add --document"),
        (["--document", "nowhere.md"], "nowhere.md: the file does not exist"),
        (["--serve", "--document", "nowhere.md"], "drop the files"),
        (["--serve", "--encoder", "nowhere"], "nowhere"),
    ],
)
def test_options_need_their_files_and_each_other(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *given]) != 0
    assert message in " ".join(capsys.readouterr().err.split())
