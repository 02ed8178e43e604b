"""`nearfar pull`: what is chosen, checked, continued and kept, from a server that can lose connections."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_args

import pytest
from server_thread import serving

from nearfar.compiler.bundle.folder import open_any
from nearfar.compiler.bundle.new_folder import new_folder
from nearfar.compiler.bundle.signature import new_key, read_trusted_keys
from nearfar.compiler.cli import main, parse
from nearfar.compiler.cli.pull import try_it
from nearfar.compiler.ir.tasks import Task
from nearfar.compiler.publish import fetch as fetch_module
from nearfar.compiler.publish.card import Measured
from nearfar.compiler.publish.pull import catalog_address, fetch_catalog, pull
from nearfar.compiler.publish.site import SiteOptions, Source, write_site
from nearfar.compiler.runtime.errors import BundleError, DeviceError, OutputError, RequestError, Unavailable
from nearfar.server_fallback.executors.catalog_models import CatalogModels

UNMEASURED = Measured(reason="a test")


class Web:
    """``requested``: path and range of each request. The connection is lost after ``limit_bytes`` of a shard, once;
    ``ranges``: whether the server has them.
    """

    def __init__(self) -> None:
        self.requested: list[tuple[str, str | None]] = []
        self.limit_bytes: int | None = None
        self.ranges = True
        self.url = ""


@contextmanager
def web(folder: Path) -> Iterator[Web]:
    state = Web()

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.requested.append((self.path, wanted))
            file = folder / self.path.lstrip("/")
            if not file.is_file():
                return self.send_error(404)
            body = file.read_bytes()
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.ranges else 0
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            body, limit = body[start:], state.limit_bytes
            if limit is not None and len(body) > limit and "/weights/" in self.path:
                state.limit_bytes, body = None, body[:limit]
            self.wfile.write(body)
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    with serving(server):
        yield state


@pytest.fixture
def site(tiny_bundle: Path, tmp_path: Path) -> Path:
    write_site([Source(open_any(tiny_bundle), UNMEASURED)], tmp_path / "site", SiteOptions("tiny", "test", web=False))
    return tmp_path / "site"


def pulled(url: str, output: Path, **options: Any) -> Any:
    catalog, address = fetch_catalog(url)
    return pull(catalog.model("tiny").bundles[0], address, output, **options)


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_pulled_bundle_is_the_published_one(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with web(site) as server:
        arguments = ["pull", "tiny", "--catalog", server.url, "-o", str(tmp_path / "here"), "--target", "webgpu"]
        assert main([*arguments, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert content(tmp_path / "here") == content(site / "tiny/webgpu")
        assert (shown["kept_bytes"], shown["quantization"]) == (0, "q4f16")
        assert shown["new_bytes"] == sum(map(len, content(site / "tiny/webgpu").values()))
        # Again: only the catalog and the manifest are fetched.
        server.requested.clear()
        assert main(arguments) == 0
        assert [path for path, _ in server.requested] == ["/catalog.json", "/tiny/webgpu/manifest.json"]
        assert f"demo {tmp_path / 'here'} --serve" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "site"]


@pytest.mark.parametrize("target", ["webgpu", "cpu"])
@pytest.mark.parametrize("task", get_args(Task))
def test_the_command_that_pull_suggests_is_one(task: Task, target: str) -> None:
    call, given = parse(shlex.split(try_it(task, target, "here")))
    assert call.words[0] in ("decide", "demo", "run", "transcribe")
    assert str(given["model" if task == "decide" else "bundle"]) == "here"


def test_a_lost_connection_continues(site: Path, tmp_path: Path) -> None:
    shard = max((site / "tiny/webgpu/weights").iterdir(), key=lambda path: path.stat().st_size)
    half = shard.stat().st_size // 2
    with web(site) as server:
        server.limit_bytes = half
        pulled(server.url, tmp_path / "here")
        ranges = [wanted for path, wanted in server.requested if path.endswith(shard.name)]
        assert ranges == [None, f"bytes={half}-"]
        # A server without ranges starts again.
        server.limit_bytes, server.ranges = half, False
        pulled(server.url, tmp_path / "again")
    assert content(tmp_path / "here") == content(tmp_path / "again") == content(site / "tiny/webgpu")


def test_a_later_run_continues(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = max((site / "tiny/webgpu/weights").iterdir(), key=lambda path: path.stat().st_size)
    half = shard.stat().st_size // 2
    with web(site) as server:
        with monkeypatch.context() as patch:
            patch.setattr(fetch_module, "ATTEMPTS", 1)
            server.limit_bytes = half
            with pytest.raises(Unavailable, match="run the command again, which continues"):
                pulled(server.url, tmp_path / "here")
        assert not (tmp_path / "here").exists()
        server.requested.clear()
        done = pulled(server.url, tmp_path / "here")
        assert [wanted for path, wanted in server.requested if path.endswith(shard.name)] == [f"bytes={half}-"]
        assert done.kept_bytes >= half
    assert content(tmp_path / "here") == content(site / "tiny/webgpu")


def test_damaged_bytes_of_an_earlier_run_are_fetched_again(site: Path, tmp_path: Path) -> None:
    shard = max((site / "tiny/webgpu/weights").iterdir(), key=lambda path: path.stat().st_size)
    partial_file = tmp_path / ".here.partial/weights" / shard.name
    partial_file.parent.mkdir(parents=True)
    partial_file.write_bytes(bytes(100))
    with web(site) as server:
        pulled(server.url, tmp_path / "here")
    assert content(tmp_path / "here") == content(site / "tiny/webgpu")


def test_another_manifest_than_the_catalogs_is_refused(site: Path, tmp_path: Path) -> None:
    manifest = site / "tiny/webgpu/manifest.json"
    manifest.write_bytes(manifest.read_bytes() + b" ")
    with web(site) as server, pytest.raises(BundleError, match="the catalog says"):
        pulled(server.url, tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_other_bytes_than_the_manifests_are_refused(site: Path, tmp_path: Path) -> None:
    shard = next((site / "tiny/webgpu/weights").iterdir())
    shard.write_bytes(bytes(shard.stat().st_size))
    with web(site) as server, pytest.raises(BundleError, match="other bytes than the manifest says"):
        pulled(server.url, tmp_path / "here")
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("size", [-1, 1, None])
def test_a_file_of_another_size_is_refused_before_the_disk_has_it(
    site: Path, tmp_path: Path, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``size``: what the server has beside the manifest's size; None: more, without saying how many."""
    shard = next((site / "tiny/webgpu/weights").iterdir())
    listed = shard.stat().st_size
    shard.write_bytes(bytes(listed + (size or 9 << 20)))
    if size is None:
        monkeypatch.setattr(fetch_module, "length_of", lambda _: None)
    with web(site) as server, pytest.raises(BundleError, match="other bytes than the manifest says"):
        pulled(server.url, tmp_path / "here")
    left = tmp_path / ".here.partial/weights" / shard.name
    assert left.stat().st_size <= listed


def test_two_processes_do_not_write_one_bundle(site: Path, tmp_path: Path) -> None:
    with new_folder(tmp_path / "here", force=True), pytest.raises(OutputError, match="another process is writing it"):
        pulled(str(site), tmp_path / "here")


def test_what_a_killed_pull_had_moved_aside_is_there_again(site: Path, tmp_path: Path) -> None:
    pulled(str(site), tmp_path / "here")
    before = content(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / ".here.replaced")
    (site / "tiny/webgpu/manifest.json").write_bytes(b"{}")
    with pytest.raises(BundleError, match="the catalog says"):
        pulled(str(site), tmp_path / "here")
    assert content(tmp_path / "here") == before


def test_a_signature_of_a_trusted_key_is_checked(tiny_bundle: Path, site: Path, tmp_path: Path) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    new_key(key)
    new_key(other)
    source = Source(open_any(tiny_bundle), UNMEASURED)
    with pytest.raises(BundleError, match="is not signed"):
        pulled(str(site), tmp_path / "here", trust=read_trusted_keys([key.with_name("key.pub")]))
    write_site([source], tmp_path / "signed", SiteOptions("tiny", "test", key=key, web=False))
    with web(tmp_path / "signed") as server:
        with pytest.raises(BundleError, match="which --trust does not list"):
            pulled(server.url, tmp_path / "here", trust=read_trusted_keys([other.with_name("other.pub")]))
        pulled(server.url, tmp_path / "here", trust=read_trusted_keys([key.with_name("key.pub")]))
    assert (tmp_path / "here/manifest.json.sig").is_file()


def test_a_folder_is_a_catalog_too_and_other_folders_stay(site: Path, tmp_path: Path) -> None:
    pulled(str(site), tmp_path / "here")
    open_any(tmp_path / "here").verify()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").touch()
    with pytest.raises(OutputError, match="exists and is not a bundle"):
        pulled(str(site), tmp_path / "mine")


def test_web_applications_are_no_bundles_and_stay(site: Path, tmp_path: Path) -> None:
    """They have a manifest.json, too."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "manifest.json").write_text('{"manifest_version": 3, "name": "My extension"}')
    (mine / "background.js").write_text("years of work")
    with pytest.raises(OutputError, match="exists and is not a bundle"):
        pulled(str(site), mine)
    with pytest.raises(OutputError, match="not a bundle, so it is not replaced"), new_folder(mine, force=True):
        raise AssertionError
    assert (mine / "background.js").read_text() == "years of work"
    with pytest.raises(OutputError, match="has no name of its own"):
        pulled(str(site), Path("/"))


def test_a_damaged_older_version_is_downloaded_and_not_changed_in_place(site: Path, tmp_path: Path) -> None:
    pulled(str(site), tmp_path / "here")
    shard = next((tmp_path / "here/weights").iterdir())
    damaged = bytes(shard.stat().st_size)
    shard.write_bytes(damaged)
    # A program that has opened the file reads the same bytes as before.
    with shard.open("rb") as opened:
        pulled(str(site), tmp_path / "here")
        assert opened.read() == damaged
    assert content(tmp_path / "here") == content(site / "tiny/webgpu")
    (tmp_path / "here/manifest.json").write_text("{")
    pulled(str(site), tmp_path / "here")
    assert content(tmp_path / "here") == content(site / "tiny/webgpu")


def test_the_folder_behind_a_link_is_written_and_the_link_stays(site: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "here").symlink_to(tmp_path / "disk")
    for _ in range(2):
        pulled(str(site), tmp_path / "here")
        assert (tmp_path / "here").is_symlink()
        assert content(tmp_path / "disk") == content(site / "tiny/webgpu")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "here", "site"]


def test_a_manifest_that_is_no_json_is_refused(site: Path, tmp_path: Path) -> None:
    (site / "tiny/webgpu/manifest.json").write_bytes(b"<html>")
    catalog = json.loads((site / "catalog.json").read_text())
    catalog["models"]["tiny"]["bundles"][0]["manifest_sha256"] = sha256(b"<html>").hexdigest()
    (site / "catalog.json").write_text(json.dumps(catalog))
    with pytest.raises(BundleError, match="is not JSON"):
        pulled(str(site), tmp_path / "here")


def test_what_the_catalog_lacks_is_named(site: Path) -> None:
    models = CatalogModels.fetch(str(site))
    with pytest.raises(DeviceError, match="no bundle of tiny fits this machine: it has bundles for webgpu only"):
        models.choose("tiny", "cpu")
    with pytest.raises(RequestError, match="the catalog has no such model"):
        models.choose("large")
    shutil.rmtree(site)
    with pytest.raises(Unavailable, match=r"catalog\.json: cannot be read"):
        fetch_catalog(str(site / "catalog.json"))


def test_addresses_of_catalogs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert catalog_address("hf:owner/name") == "https://huggingface.co/owner/name/resolve/main/catalog.json"
    assert catalog_address("https://models.example/all") == "https://models.example/all/catalog.json"
    assert catalog_address("https://models.example/my.json") == "https://models.example/my.json"
    with pytest.raises(RequestError, match="is not an address"):
        catalog_address("http://[models")


# Python reads integers of some thousand digits at most.
@pytest.mark.parametrize("length", ["many", "9" * 5000])
def test_a_length_that_is_no_number_says_nothing(
    length: str, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = SimpleHTTPRequestHandler.send_header
    monkeypatch.setattr(
        SimpleHTTPRequestHandler,
        "send_header",
        lambda self, key, value: send(self, key, length if key == "Content-Length" else value),
    )
    with web(site) as server:
        pulled(server.url, tmp_path / "here")
    assert content(tmp_path / "here") == content(site / "tiny/webgpu")
