"""Helpers that open the chat page and type in it: a small model, its server, a page that records its problems."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from light_bundle import lighten
from page_looks import DESK
from page_model import NAME, page_bundle
from playwright.sync_api import Browser, Page

from nearfar.compiler.browser.page_server import PageServer
from nearfar.compiler.bundle.manifest import MANIFEST_FILE

TIMEOUT_MS = 180_000


@contextmanager
def page_server(folder: Path, *, self_test: bool = False, context: int | None = None) -> Iterator[PageServer]:
    """The page's server with a copy of `page_bundle` in the folder; its longest sequence has ``context`` tokens if
    given.
    """
    copy = folder / NAME
    shutil.copytree(page_bundle(), copy)
    lighten(copy, self_test=self_test)
    if context is not None:
        manifest = copy / MANIFEST_FILE
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "context": context}))
    with PageServer(copy) as server:
        yield server


def open_page(browser: Browser, problems: list[str], script: str | None = None) -> Page:
    """Open an empty page in a context of its own, and add its errors and its console's warnings to ``problems``.

    The script runs before those of the page.
    """
    context = browser.new_context(
        permissions=["clipboard-read", "clipboard-write"], viewport={"width": DESK[0], "height": DESK[1]}
    )
    context.set_default_timeout(TIMEOUT_MS)
    if script is not None:
        context.add_init_script(script)
    page = context.new_page()
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    return page


def send(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def new_chat(page: Page) -> None:
    """Start a new conversation, which removes the answers of the last one."""
    page.click("#new-chat")
    page.wait_for_selector(".answer", state="detached")


def ask(page: Page, text: str) -> None:
    """Send a message and wait for the answer."""
    count = page.locator(".answer").count()
    send(page, text)
    page.wait_for_selector(f".answer[data-state=done] >> nth={count}")


def markdown(page: Page, answer: int = 0) -> str:
    """The text of an answer, before it is rendered."""
    return page.locator(".answer .text").nth(answer).get_attribute("data-markdown") or ""
