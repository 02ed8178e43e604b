"""The store of bundles in headless Chromium: downloads resume, are repaired, are shared by tabs and work offline."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from faulty_server import Server, serve
from playwright.sync_api import Browser, BrowserContext, Page
from store_pages import (
    BIG,
    BIG_BYTES,
    DAMAGE,
    FIRST_PIECE,
    IMPORT,
    LIST,
    LOAD,
    LOADED,
    MIB,
    PIECE_BYTES,
    SMALL,
    SMALL_BYTES,
    START,
    WAITING,
    WRITE_LETTERS_BUNDLE,
    load,
    load_cut_off,
    new_context,
    open_page,
    shard_of,
    stored_bytes,
    write_shard,
)
from waiting import wait_until

from nearfar.compiler.browser.page_server import PAGE


@pytest.fixture(scope="module")
def site(chromium: str, node: str, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    """A page and a worker that only import the package, and two bundles.

    Both bundles have the same shard of several pieces, and each has a small shard of its own.
    """
    site = tmp_path_factory.mktemp("store")
    shutil.copy(PAGE.parent / "nearfar.js", site)
    (site / "index.html").write_text(f"<script type=module>{IMPORT} window.nearfar = nearfar;</script><body>")
    (site / "worker.js").write_text(
        f"{IMPORT} onmessage = async ({{ data }}) => postMessage(await ({LOAD})([data, {{}}]));"
    )
    for seed, name in enumerate(("bundle", "sibling")):
        subprocess.run(
            [node, "--input-type=module", "-e", WRITE_LETTERS_BUNDLE, site / name], cwd=ROOT / "web", check=True
        )
        manifest = json.loads((site / name / "manifest.json").read_text())
        weights = (site / name / BIG).read_bytes()
        big = weights + random.Random(0).randbytes(BIG_BYTES - len(weights))
        small = random.Random(seed).randbytes(SMALL_BYTES)
        manifest["shards"] = [write_shard(site / name, BIG, big), write_shard(site / name, SMALL, small)]
        (site / name / "manifest.json").write_text(json.dumps(manifest))
    return site


@pytest.fixture
def server(site: Path) -> Iterator[Server]:
    server = serve(site)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def shared(browser: Browser) -> Iterator[BrowserContext]:
    """Each test has a server of its own, and so an origin with an empty store."""
    with new_context(browser) as context:
        yield context


@pytest.fixture
def page(shared: BrowserContext, server: Server) -> Page:
    first, *others = shared.pages or [shared.new_page()]
    for other in others:
        other.close()
    return open_page(first, server)


def test_a_warm_load_only_revalidates_the_manifest(page: Page, server: Server) -> None:
    cold = load(page, server)
    total = cold["reports"][-1]["totalBytes"]
    assert [report["phase"] for report in cold["reports"] if report["loadedBytes"] == 0][:2] == ["manifest", "download"]
    assert cold["reports"][-1] == {**cold["reports"][-1], "phase": "ready", "loadedBytes": total, "storedBytes": 0}
    assert Counter(path for path, _, _ in server.behaviour.requests).most_common(1)[0][1] == 1
    server.behaviour.requests.clear()
    page.reload()
    page.wait_for_function("window.nearfar")
    warm = load(page, server)
    assert [(path, status) for path, _, status in server.behaviour.requests if path.startswith("/bundle/")] == [
        ("/bundle/manifest.json", 304)
    ]
    assert {report["phase"] for report in warm["reports"]} == {"manifest", "upload", "ready"}
    # This device passed the self-test in the cold load.
    assert cold["reports"][-1].pop("selfTestRuns") > 0
    assert warm["reports"][-1] == {**cold["reports"][-1], "storedBytes": total}
    assert warm["ids"] == cold["ids"]


@pytest.mark.exhaustive
def test_persistent_storage_is_requested_once(browser: Browser, server: Server) -> None:
    count = "window.requests = 0; StorageManager.prototype.persist = async () => { window.requests++; return false; }"
    with new_context(browser, count) as context:
        page = open_page(context.new_page(), server)
        load(page, server)
        load(page, server)
        assert page.evaluate("() => window.requests") == 1


def test_a_worker_and_the_page_share_the_store(page: Page, server: Server) -> None:
    in_worker = page.evaluate(
        """(url) => new Promise((resolve, reject) => {
            const worker = new Worker("worker.js", { type: "module" });
            worker.onmessage = ({ data }) => resolve(data);
            worker.onerror = ({ message }) => reject(new Error(message));
            worker.postMessage(url);
        })""",
        "bundle/",
    )
    assert in_worker["error"] is None
    assert stored_bytes(in_worker) == 0
    server.behaviour.requests.clear()
    loaded = load(page, server)
    assert server.behaviour.received(".bin") == []
    assert loaded["ids"] == in_worker["ids"]


@pytest.mark.exhaustive
def test_a_page_can_open_a_separate_store(page: Page, server: Server) -> None:
    own = f"async ([url, options]) => ({LOAD})([url, {{ ...options, store: await nearfar.BundleStore.open('own') }}])"
    for stored in (False, True):
        loaded = page.evaluate(own, [f"{server.url}bundle/", {}])
        assert loaded["error"] is None
        assert (stored_bytes(loaded) > 0) == stored
    assert page.evaluate(LIST) == []
    assert page.evaluate("async () => (await (await nearfar.BundleStore.open('own')).list()).length") == 1


# The test of a page that was closed resumes as well, and web/test/store/stored_source.test.ts has the offsets.
@pytest.mark.exhaustive
def test_a_load_resumes_at_the_offset_where_the_last_one_was_cut_off(page: Page, server: Server) -> None:
    cut = 7 * MIB + 123
    failed = load_cut_off(page, server, cut, error="bundle_error")
    assert failed["error"]["details"] == {"file": BIG, "status": 410}
    loaded = load(page, server)
    (_, whole), (rest, partial_content) = server.behaviour.received(BIG)
    assert (whole, partial_content) == (200, 206)
    start = int((rest or "").removeprefix("bytes=").removesuffix("-"))
    # A reset connection may lose bytes that were sent.
    assert PIECE_BYTES <= start <= cut
    assert stored_bytes(loaded) >= start
    assert loaded["reports"][-1]["loadedBytes"] == loaded["reports"][-1]["totalBytes"]


@pytest.mark.exhaustive
def test_a_load_reconnects_after_its_connection_was_cut_off(page: Page, server: Server) -> None:
    server.behaviour.recovers = True
    cut = 5 * MIB
    loaded = load_cut_off(page, server, cut)
    (first, _), (rest, status) = server.behaviour.received(BIG)
    assert (first, status) == (None, 206)
    assert PIECE_BYTES <= int((rest or "").removeprefix("bytes=").removesuffix("-")) <= cut
    counts = [report["loadedBytes"] for report in loaded["reports"]]
    assert counts == sorted(counts)
    assert counts[-1] == loaded["reports"][-1]["totalBytes"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("change", ["no ranges", "another version"])
def test_a_download_restarts_if_the_server_sends_the_complete_file(page: Page, server: Server, change: str) -> None:
    server.behaviour.cut[f"/bundle/{BIG}"] = 5 * MIB
    load(page, server, error="bundle_error")
    if change == "no ranges":
        server.behaviour.ranges = False
    else:
        server.behaviour.version = "2"
    loaded = load(page, server)
    assert [status for _, status in server.behaviour.received(BIG)] == [200, 200]
    final = loaded["reports"][-1]
    assert final["loadedBytes"] == final["totalBytes"]
    assert max(report["loadedBytes"] for report in loaded["reports"]) == final["totalBytes"]


@pytest.mark.exhaustive
def test_a_damaged_file_is_fetched_once_more(page: Page, server: Server) -> None:
    server.behaviour.damage[f"/bundle/{SMALL}"] = 1
    loaded = load(page, server)
    assert server.behaviour.received(SMALL) == [(None, 200), (None, 200)]
    assert loaded["reports"][-1]["loadedBytes"] == loaded["reports"][-1]["totalBytes"]


@pytest.mark.exhaustive
def test_a_file_that_is_always_damaged_is_an_error_that_names_it(page: Page, server: Server) -> None:
    server.behaviour.damage[f"/bundle/{SMALL}"] = 3
    failed = load(page, server, error="bundle_error")
    assert failed["error"]["message"].startswith(f"{SMALL}: has SHA-256 ")
    assert failed["error"]["details"]["file"] == SMALL
    assert len(server.behaviour.received(SMALL)) == 2
    # Nothing of the file remains to resume from. The fourth answer replaces the third, which is damaged.
    load(page, server)
    assert [range_ for range_, _ in server.behaviour.received(SMALL)] == [None] * 4


@pytest.mark.exhaustive
def test_a_damaged_file_of_the_store_is_fetched_again(page: Page, server: Server) -> None:
    load(page, server)
    server.behaviour.requests.clear()
    page.evaluate(DAMAGE, shard_of(server, "bundle", BIG)["sha256"])
    loaded = load(page, server)
    assert server.behaviour.received(".bin") == [(None, 200)]
    assert "download" in {report["phase"] for report in loaded["reports"]}
    final = loaded["reports"][-1]
    assert (final["loadedBytes"], final["storedBytes"]) == (final["totalBytes"], final["totalBytes"] - BIG_BYTES)
    server.behaviour.requests.clear()
    load(page, server)
    assert server.behaviour.received(".bin") == []


def test_too_little_room_is_an_error_before_any_download(page: Page, server: Server) -> None:
    session = page.context.new_cdp_session(page)
    session.send("Storage.overrideQuotaForOrigin", {"origin": server.url.rstrip("/"), "quotaSize": 8 * MIB})
    failed = load(page, server, error="storage_error")
    details = failed["error"]["details"]
    assert details["neededBytes"] > BIG_BYTES
    assert 7 * MIB < details["availableBytes"] <= 8 * MIB
    assert "store: false" in failed["error"]["message"]
    assert server.behaviour.received(".bin") == []
    load(page, server, store=False)
    assert server.behaviour.received(BIG) == [(None, 200)]


@pytest.mark.exhaustive
def test_a_store_that_becomes_full_during_the_download_is_the_same_error(page: Page, server: Server) -> None:
    server.behaviour.hold[f"/bundle/{BIG}"] = 6 * MIB
    page.evaluate(START, [f"{server.url}bundle/", {}])
    assert server.behaviour.held.wait(60)
    session = page.context.new_cdp_session(page)
    session.send("Storage.overrideQuotaForOrigin", {"origin": server.url.rstrip("/"), "quotaSize": 5 * MIB})
    server.behaviour.go.set()
    failed = page.evaluate(LOADED)
    assert failed["error"]["code"] == "storage_error", failed["error"]
    assert failed["error"]["details"].get("neededBytes", 0) > 0, failed["error"]


# The next test has two pages as well, and web/test/store/stored_source.test.ts two loads at once.
@pytest.mark.exhaustive
def test_two_pages_that_load_at_once_fetch_each_file_once(page: Page, server: Server) -> None:
    other = open_page(page.context.new_page(), server)
    server.behaviour.hold[f"/bundle/{BIG}"] = 6 * MIB
    page.evaluate(START, [f"{server.url}bundle/", {}])
    assert server.behaviour.held.wait(60)
    other.evaluate(START, [f"{server.url}bundle/", {}])
    wait_until(lambda: bool(other.evaluate(WAITING)))
    server.behaviour.go.set()
    first, second = page.evaluate(LOADED), other.evaluate(LOADED)
    assert first["error"] is None
    assert first["ids"] == second["ids"]
    fetched = Counter(
        path
        for path, _, _ in server.behaviour.requests
        if path.startswith("/bundle/") and not path.endswith("manifest.json")
    )
    assert set(fetched.values()) == {1}
    assert stored_bytes(second) >= BIG_BYTES


def test_a_page_resumes_the_download_of_a_closed_page(page: Page, server: Server) -> None:
    dying = open_page(page.context.new_page(), server)
    server.behaviour.hold[f"/bundle/{BIG}"] = 6 * MIB
    dying.evaluate(START, [f"{server.url}bundle/", {}])
    assert server.behaviour.held.wait(60)
    # One piece is stored, the second is not full yet.
    sha256 = shard_of(server, "bundle", BIG)["sha256"]
    wait_until(lambda: bool(page.evaluate(FIRST_PIECE, sha256)))
    page.evaluate(START, [f"{server.url}bundle/", {}])
    wait_until(lambda: bool(page.evaluate(WAITING)))
    dying.close()
    loaded = page.evaluate(LOADED)
    assert loaded["error"] is None
    (_, _), (rest, status) = server.behaviour.received(BIG)
    assert status == 206
    assert int((rest or "").removeprefix("bytes=").removesuffix("-")) >= PIECE_BYTES


# web/test/store/stored_source.test.ts and bundle_store.test.ts have servers that are gone, the chat page one of its
# own origin.
@pytest.mark.exhaustive
def test_a_loaded_bundle_of_another_origin_loads_again_when_its_server_is_gone(page: Page, server: Server) -> None:
    host = serve(server.folder)
    try:
        host.behaviour.cut[f"/bundle/{BIG}"] = 5 * MIB
        load(page, host, error="bundle_error")
        online = load(page, host)
        # This origin cannot read the Content-Range header, and still uses the rest.
        assert [status for _, status in host.behaviour.received(BIG)] == [200, 206]
    finally:
        host.stop()
    page.reload()
    page.wait_for_function("window.nearfar")
    offline = load(page, host)
    assert offline["ids"] == online["ids"]
    assert stored_bytes(offline) == offline["reports"][-1]["totalBytes"]
    assert "manifest.json" in load(page, host, "sibling", error="bundle_error")["error"]["message"]


# test_chat_page.py lists and deletes models, and web/test/store/bundle_store.test.ts has shared files.
@pytest.mark.exhaustive
def test_stored_bundles_are_listed_and_deleted_and_shared_files_stay(page: Page, server: Server) -> None:
    assert page.evaluate(LIST) == []
    server.behaviour.cut[f"/sibling/{SMALL}"] = 0
    load(page, server)
    load(page, server, "sibling", error="bundle_error")
    # The large shard was stored with the first bundle.
    assert server.behaviour.received(f"/sibling/{BIG}") == []
    sibling, bundle = page.evaluate(LIST)
    assert (bundle["url"], bundle["complete"]) == (f"{server.url}bundle/", True)
    assert (sibling["url"], sibling["complete"]) == (f"{server.url}sibling/", False)
    assert bundle["bytes"] > BIG_BYTES + SMALL_BYTES
    assert 0 < bundle["lastUsed"] <= sibling["lastUsed"]
    assert page.evaluate("() => nearfar.cache.delete('bundle')") is True
    assert page.evaluate("() => nearfar.cache.delete('bundle/')") is False
    server.behaviour.requests.clear()
    load(page, server, "sibling")
    assert server.behaviour.received(".bin") == [(None, 200)]
    page.evaluate("() => nearfar.cache.clear()")
    assert page.evaluate(LIST) == []
    assert page.evaluate("async () => (await navigator.storage.estimate()).usage") < MIB


@pytest.mark.exhaustive
def test_a_bundle_cannot_be_deleted_while_it_loads(page: Page, server: Server) -> None:
    delete = "(call) => nearfar.cache[call]('bundle').then(() => null, (error) => error.toJSON())"
    server.behaviour.hold[f"/bundle/{BIG}"] = 6 * MIB
    page.evaluate(START, [f"{server.url}bundle/", {}])
    assert server.behaviour.held.wait(60)
    for call in ("delete", "clear"):
        refused = page.evaluate(delete, call)
        assert refused["code"] == "storage_error"
        assert "is being loaded" in refused["message"]
    server.behaviour.go.set()
    assert page.evaluate(LOADED)["error"] is None
    assert page.evaluate(delete, "delete") is None


# test_journal.py and others load without a store; web/test/runtime/source.test.ts has the requests.
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "missing",
    [
        "StorageManager.prototype.getDirectory = () => Promise.reject(new DOMException('private', 'SecurityError'))",
        "delete FileSystemFileHandle.prototype.createWritable",
        "delete Navigator.prototype.locks",
    ],
)
def test_without_a_store_a_bundle_loads_straight_from_the_network(
    browser: Browser, server: Server, missing: str
) -> None:
    with new_context(browser, missing) as context:
        page = open_page(context.new_page(), server)
        for _ in range(2):
            server.behaviour.requests.clear()
            loaded = load(page, server)
            assert BIG in {path.removeprefix("/bundle/") for path, _, _ in server.behaviour.requests}
            assert {report["phase"] for report in loaded["reports"]} >= {"manifest", "download", "ready"}
            assert stored_bytes(loaded) == 0
        assert page.evaluate(LIST) == []
