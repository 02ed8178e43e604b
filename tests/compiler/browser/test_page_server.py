"""The server of the page: the page at /, the bundle at /bundle/, and no files outside of both."""

from __future__ import annotations

import http.client
from pathlib import Path

import pytest

from nearfar.compiler.browser import page_server
from nearfar.compiler.browser.page_server import PageServer
from nearfar.compiler.runtime.errors import RequestError, ToolError


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PageServer:
    page, bundle = tmp_path / "page", tmp_path / "bundle"
    page.mkdir()
    (page / "index.html").write_text("<h1>page</h1>")
    (bundle / "kernels").mkdir(parents=True)
    (bundle / "manifest.json").write_text("{}")
    (bundle / "kernels" / "a.wgsl").write_text("// a")
    (tmp_path / "secret").write_text("secret")
    monkeypatch.setattr(page_server, "PAGE", page)
    return PageServer(bundle)


def get(server: PageServer, path: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rstrip("/").rpartition(":")[2]))
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type", ""), response.read().decode()
    finally:
        connection.close()


def test_it_serves_the_page_and_the_bundle(server: PageServer) -> None:
    with server:
        assert get(server, "/") == (200, "text/html", "<h1>page</h1>")
        assert get(server, "/bundle/manifest.json") == (200, "application/json", "{}")
        assert get(server, "/bundle/kernels/a.wgsl") == (200, "text/plain", "// a")


def test_the_chat_page_gets_the_finder_and_the_other_pages_do_not(server: PageServer, tmp_path: Path) -> None:
    (tmp_path / "finder").mkdir()
    (tmp_path / "finder/manifest.json").write_text("[]")
    with server, PageServer(server.bundle, far="http://far:8000", finder=tmp_path / "finder") as found:
        assert found.chat_url == f"{found.url}?far=http://far:8000&finder=./finder/"
        assert "finder" not in found.documents_url
        assert get(found, "/finder/manifest.json") == (200, "application/json", "[]")


@pytest.mark.parametrize(
    "path", ["/../secret", "/bundle/../secret", "/bundle/%2e%2e/secret", "/bundle/kernels/../../secret"]
)
def test_it_serves_nothing_outside(path: str, server: PageServer) -> None:
    with server:
        assert get(server, path)[0] == 404


def test_a_port_in_use_is_a_typed_error(server: PageServer, tmp_path: Path) -> None:
    with server, pytest.raises(RequestError, match=r"--port \d+"):
        PageServer(tmp_path / "bundle", int(server.url.rstrip("/").rpartition(":")[2]))


def test_an_invalid_port_is_a_typed_error(server: PageServer, tmp_path: Path) -> None:
    with server, pytest.raises(RequestError, match=r"--port 99999: .* choose another"):
        PageServer(tmp_path / "bundle", 99999)


def test_the_error_for_a_page_that_is_not_built_states_how_to_build_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "PAGE", tmp_path / "nowhere")
    with pytest.raises(ToolError, match="make web"):
        PageServer(tmp_path)
