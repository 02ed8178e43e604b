"""Pages of small sites of their own, with scripts of the package."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page
from static_site import serve

from nearfar.compiler.browser.page_server import PAGE
from nearfar.compiler.bundle.folder import Bundle


@contextmanager
def engine_page(
    browser: Browser, bundle: Bundle, site: Path, scripts: Sequence[str], files: Mapping[str, str]
) -> Iterator[Page]:
    """A page whose ``window.engine`` has loaded the bundle. ``files`` are the site's others by name; index.html sets
    the state of its body to "ready".
    """
    for script in scripts:
        shutil.copy(PAGE.parent / script, site)
    for name, text in files.items():
        (site / name).write_text(text)
    shutil.copytree(bundle.path, site / "bundle")
    with serve(site) as url:
        opened = browser.new_page()
        opened.goto(url)
        opened.wait_for_selector("body[data-state=ready]", state="attached")
        opened.evaluate("async () => { window.engine = await Engine.load('./bundle/'); }")
        yield opened
        opened.close()


@contextmanager
def script_page(browser: Browser, site: Path, script: str, work: str) -> Iterator[Page]:
    """An empty page beside a script of the package, and a worker.js that answers each message with the result of the
    function ``work``.
    """
    shutil.copy(PAGE.parent / script, site)
    (site / "index.html").write_text("<body>")
    (site / "worker.js").write_text(f"onmessage = async ({{ data }}) => postMessage(await ({work})(data));")
    with serve(site) as url:
        opened = browser.new_page()
        opened.goto(url)
        yield opened
        opened.close()
