"""The commands of the far side are found by the command line, which stays quick."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nearfar.compiler.cli import main


def test_the_command_line_loads_nothing_of_the_server() -> None:
    slow = ("fastapi", "httpx", "uvicorn", "prometheus_client", "nearfar.server_fallback.schema", "nearfar.server_fallback.executors")
    code = f"import sys, nearfar.compiler.cli as cli; cli.make_parser(); print([name for name in {slow!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "[]"


def test_a_server_without_its_libraries_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.setitem(sys.modules, "httpx", None)
    assert main(["serve", "demo"]) == 2
    assert "nearfar serve needs fastapi: pip install 'nearfar[serve]'" in " ".join(capsys.readouterr().err.split())
    assert main(["bench", "serve", "http://127.0.0.1:9"]) == 2
    assert "pip install 'nearfar[serve]'" in " ".join(capsys.readouterr().err.split())
