"""What ``nearfar demo`` refuses. `test_wheel.py` runs it from end to end, as a user does."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearfar.compiler.browser import page_server
from nearfar.compiler.cli import demo, main
from nearfar.compiler.demo import DEMOS


def test_a_missing_page_is_refused_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compiled(*_: object) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(page_server, "PAGE", tmp_path)
    monkeypatch.setattr(demo, "compile_demo", compiled)
    assert main(["demo", "--serve"]) != 0
    assert "the web page is not built; run 'make web'" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--policy", "policy.json"], "--far URL"),
        (["--far", "http://x", "--policy", "nowhere.json"], "the file does not exist"),
        (["--far", "localhost:8000"], "is not the URL of a server"),
        (["--encoder", "nowhere"], "add --serve"),
        (["--transcriber", "nowhere"], "add --serve"),
        (["--serve", "--transcriber", "nowhere"], "nowhere"),
        (["--finder", "demo-finder"], "add --serve and --far"),
        (["--serve", "--far", "http://x", "--finder", "nowhere"], "nowhere"),
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


def test_the_list_has_each_demo_model_with_the_size_of_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, checkpoint in DEMOS.items():
        size = sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())
        written = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"
        assert any(line.split()[:3] == [name, *written.split()] for line in lines), name
