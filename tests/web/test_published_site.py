"""A published site in Chromium: the snippet loads the model by its name, with every file of the library pinned, and the
chat page opens the model.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from static_site import serve

from nearfar.compiler.bundle.folder import open_any
from nearfar.compiler.publish.card import Measured
from nearfar.compiler.publish.site import SiteOptions, Source, write_site

TIMEOUT_MS = 120_000


@pytest.fixture(scope="module")
def site(light_demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("published") / "site"
    source = Source(open_any(light_demo), Measured(reason="a test"))
    write_site([source], site, SiteOptions("demo", "nearfar publish demo"))
    return site


@pytest.fixture
def url(site: Path) -> Iterator[str]:
    with serve(site) as address:
        yield address


def test_the_snippet_answers_and_the_chat_page_opens(browser: Browser, chromium: str, url: str) -> None:  # noqa: ARG001
    context = browser.new_context()
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{url}demo/snippet.html")
    page.wait_for_function("document.body.innerText.trim().length > 3", timeout=TIMEOUT_MS)
    assert errors == []
    page.goto(f"{url}index.html")
    assert "unknown: the files of the checkpoint state none" not in page.content()
    chat = page.get_by_text("Chat with it on this device")
    assert chat.get_attribute("href") == "chat/?bundle=../demo/webgpu/"
    # Without ?bundle=, the page opens the site's model, too. The snippet has shown that it answers.
    with page.expect_request("**/demo/webgpu/manifest.json", timeout=TIMEOUT_MS):
        page.goto(f"{url}chat/")
    context.close()


def test_a_changed_library_does_not_run(browser: Browser, chromium: str, site: Path, tmp_path: Path) -> None:  # noqa: ARG001
    shutil.copytree(site, tmp_path / "site")
    (library,) = (tmp_path / "site/nearfar").glob("*/nearfar.js")
    library.write_text(library.read_text() + "\n// changed")
    context = browser.new_context()
    page = context.new_page()
    with (
        serve(tmp_path / "site") as url,
        page.expect_console_message(lambda message: "integrity" in message.text, timeout=TIMEOUT_MS),
    ):
        page.goto(f"{url}demo/snippet.html")
    context.close()
