"""The command line finds the commands of the far side, and stays fast."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nearfar.compiler.cli import main, make_parser
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.cli.serve import api_config


def test_the_command_line_loads_nothing_of_the_server() -> None:
    slow = (
        "fastapi",
        "httpx",
        "uvicorn",
        "prometheus_client",
        "nearfar.server_fallback.schema",
        "nearfar.server_fallback.executors",
    )
    code = (
        "import importlib, sys; from nearfar.compiler.cli.overview import COMMANDS; "
        "[importlib.import_module(command.module) for command in COMMANDS.values()]; "
        f"print([name for name in {slow!r} if name in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "[]"
    )


@pytest.mark.parametrize("command", ["serve demo", "gateway --near demo --far http://127.0.0.1:9 --policy p.json"])
def test_the_command_line_sets_the_limits_of_a_client(command: str) -> None:
    limits = (
        "--client-share 0.25 --max-connections 100 --body-memory 1MB --trusted-proxy 10.0.0.7 --trusted-proxy "
        "10.1.0.0/16"
    )
    config = api_config(make_parser().parse_args([*command.split(), *limits.split()]), {})
    assert (config.client_share, config.max_connections, config.body_memory_bytes) == (0.25, 100, 1_000_000)
    assert config.trusted_proxies == ("10.0.0.7/32", "10.1.0.0/16")
    default = api_config(make_parser().parse_args(command.split()), {})
    assert default == ApiConfig(allowed_hosts=default.allowed_hosts)


def test_the_error_of_a_server_without_its_libraries_states_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.setitem(sys.modules, "httpx", None)
    assert main(["serve", "demo"]) == 2
    assert "nearfar serve needs fastapi: pip install 'nearfar[serve]'" in " ".join(capsys.readouterr().err.split())
    assert main(["bench", "serve", "http://127.0.0.1:9"]) == 2
    assert "pip install 'nearfar[serve]'" in " ".join(capsys.readouterr().err.split())
