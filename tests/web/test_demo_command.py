"""``nearfar demo`` from end to end, in its own process, as a user starts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nearfar.compiler.cli import main


@pytest.mark.usefixtures("chromium")
def test_the_demo_command_prints_a_right_answer_and_leaves_a_screenshot(tmp_path: Path) -> None:
    screenshot = tmp_path / "demo.png"
    command = [
        sys.executable,
        "-m",
        "nearfar.compiler.cli",
        "demo",
        "--prompt",
        "what is 27 + 58?",
        "--screenshot",
        str(screenshot),
    ]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "27 + 58 = 85" in printed
    assert "tokens/s" in printed
    assert "--serve" in printed
    assert screenshot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--policy", "policy.json"], "--far URL"),
        (["--far", "http://x", "--policy", "nowhere.json"], "the file does not exist"),
        (["--far", "localhost:8000"], "is not the URL of a server"),
        (["--encoder", "nowhere"], "add --serve"),
        (["--serve", "--encoder", "nowhere"], "nowhere"),
    ],
)
def test_options_need_their_files_and_each_other(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *given]) != 0
    assert message in " ".join(capsys.readouterr().err.split())
