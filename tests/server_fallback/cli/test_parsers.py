"""The options of the far side's commands, and what these need."""

from __future__ import annotations

import sys

import pytest
from command_line import parsed

from nearfar.compiler.cli import main
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.cli.serve import api_config
from nearfar.server_fallback.images.options import ImageOptions


@pytest.mark.parametrize("command", ["serve demo", "gateway --near demo --far http://127.0.0.1:9 --policy p.json"])
def test_the_command_line_sets_the_limits_of_a_client(command: str) -> None:
    limits = (
        "--client-share 0.25 --max-connections 100 --body-memory 1MB --trusted-proxy 10.0.0.7 --trusted-proxy "
        "10.1.0.0/16"
    )
    config = api_config(parsed(*command.split(), *limits.split()), {})
    assert (config.client_share, config.max_connections, config.body_memory_bytes) == (0.25, 100, 1_000_000)
    assert config.trusted_proxies == ("10.0.0.7/32", "10.1.0.0/16")
    default = api_config(parsed(*command.split()), {})
    assert default == ApiConfig(allowed_hosts=default.allowed_hosts, is_local=True)


def test_the_command_line_sets_which_images_are_read() -> None:
    given = "--allow-image-urls images.Example.org --allow-image-urls *.example.net --image-cache 1MB --text-only"
    local = parsed("serve", "demo", *given.split()).local
    assert local.images.allow_image_urls == ("images.example.org", "*.example.net")
    assert (local.images.image_cache_bytes, local.text_only) == (1_000_000, True)
    assert parsed("serve", "demo").local.images == ImageOptions()


def test_the_error_of_a_server_without_its_libraries_states_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.setitem(sys.modules, "httpx", None)
    assert main(["serve", "demo"]) == 2
    assert "nearfar serve needs fastapi: pip install 'nearfar[serve]'" in " ".join(capsys.readouterr().err.split())
    assert main(["bench", "serve", "http://127.0.0.1:9"]) == 2
    assert "pip install 'nearfar[serve]'" in " ".join(capsys.readouterr().err.split())
