"""A deploy of the page: the service worker of a new build replaces the offline cache of the earlier build."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

from playwright.sync_api import Browser
from static_site import serve

from nearfar.compiler.browser.page_server import PAGE

CACHES = "async () => (await caches.keys()).filter((name) => name.startsWith('nearfar page '))"
# Waits until the only cache is the one of this build, with all of its files.
CACHED = """async (name) => {
    for (const end = performance.now() + 30_000; performance.now() < end;) {
        const names = (await caches.keys()).filter((name) => name.startsWith("nearfar page "));
        if (names.join() === name && (await (await caches.open(name)).keys()).length > 5) return;
        await new Promise((resolve) => setTimeout(resolve, 20));
    }
    throw new Error(`the caches are ${await caches.keys()}`);
}"""


def build(folder: Path, title: str, version: int) -> str:
    """Change the page's title and the hash in its service worker, as another build does. Returns the cache's name."""
    digest = f"{version:016x}"
    page, worker = folder / "index.html", folder / "service_worker.js"
    page.write_text(re.sub(r"<title>[^<]*</title>", f"<title>{title}</title>", page.read_text()))
    changed, count = re.subn(r'(hash"?:\s*["`])[0-9a-f]{16}(["`])', rf"\g<1>{digest}\g<2>", worker.read_text())
    assert count == 1
    worker.write_text(changed)
    # The server compares times in whole seconds.
    modified = time.time() + 10 * version
    for file in (page, worker):
        os.utime(file, (modified, modified))
    return f"nearfar page {digest}"


def test_after_a_deploy_a_reload_shows_the_new_page_and_its_files_replace_the_old_cache(
    browser: Browser,
    chromium: str,  # noqa: ARG001
    tmp_path: Path,
) -> None:
    folder = tmp_path / "page"
    # The contents of most files do not matter here. test_chat_page.py opens the page itself from its cache.
    shutil.copytree(PAGE, folder, copy_function=lambda _, file: Path(file).touch())
    (folder / "index.html").write_text(
        "<title></title><script>navigator.serviceWorker.register('./service_worker.js')</script>"
    )
    shutil.copy(PAGE / "service_worker.js", folder)
    context = browser.new_context()
    with serve(folder, {"Cache-Control": "no-cache"}) as url:
        old = build(folder, "the first build", 1)
        page = context.new_page()
        page.goto(url)
        page.evaluate(CACHED, old)
        new = build(folder, "the second build", 2)
        page.reload()
        assert page.title() == "the second build"
        page.evaluate(CACHED, new)
    # The server is stopped, so the page comes from the new cache.
    page.reload()
    assert page.title() == "the second build"
    assert page.evaluate(CACHES) == [new]
    context.close()
