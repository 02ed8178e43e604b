"""Helpers that open the chat page and type in it: a small model, its server, a page that records its problems, answers
that a test writes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from light_bundle import lighten
from page_looks import DESK, resize
from page_model import NAME, page_bundle
from playwright.sync_api import Browser, Page

from nearfar.compiler.browser.page_server import PageServer
from nearfar.compiler.bundle.manifest import MANIFEST_FILE

# The page works without a service worker as well, which would store all of its files, in 0.9 s of CPU time.
NOT_KEPT = "delete Navigator.prototype.serviceWorker;"
# Makes the page's engine answer with these pieces. At a piece that is null, the answer pauses until `release`.
SCRIPTED = """(pieces) => {
    const engine = window.nearfar.engine;
    // A release that comes before the pause ends it at once.
    let [released, resume] = [0, null];
    window.release = () => {
        if (resume === null) released++;
        else resume();
        resume = null;
    };
    window.requests = [];
    engine.generate = async function* (messages, options) {
        window.requests.push(messages);
        for (const piece of pieces) {
            options.signal.throwIfAborted();
            if (piece === null && released > 0) released--;
            else if (piece === null) await new Promise((resolve) => { resume = resolve; });
            else yield { type: "token", text: piece, tokenId: 1 };
        }
        const timings = { promptTokens: 1, cachedTokens: 0, completionTokens: 1, timeToFirstTokenMs: 1,
            tokensPerSecond: null };
        yield { type: "done", text: "", finishReason: "stop", timings };
    };
}"""


# Holds the next answer of the page's engine after so many tokens, until it is stopped or the page ends. A small model
# writes a hundred tokens in less time than a test needs to look at the page.
HOLD_NEXT = """(count) => {
    const engine = window.nearfar.engine;
    const { generate } = engine;
    engine.generate = async function* (messages, options) {
        engine.generate = generate;
        let written = 0;
        for await (const event of generate.call(engine, messages, options)) {
            yield event;
            if (++written === count) await new Promise((_, reject) => {
                options.signal.addEventListener("abort", () => reject(options.signal.reason));
            });
        }
    };
}"""
# Resolves `window.seen` when a node shows these words.
SEE = """(node, words) => {
    window.seen = new Promise((resolve) => {
        const look = () => { if (node.textContent.includes(words)) resolve(); };
        new MutationObserver(look).observe(node, { childList: true, subtree: true, characterData: true });
    });
}"""


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


def open_page(browser: Browser, problems: list[str], script: str | None = None, *, kept: bool = False) -> Page:
    """Open an empty page in a context of its own, and add its errors and its console's warnings to ``problems``.

    The script runs before those of the page. ``kept``: the page's service worker keeps it for visits without a network.
    """
    context = browser.new_context(
        permissions=["clipboard-read", "clipboard-write"], viewport={"width": DESK[0], "height": DESK[1]}
    )
    for each in (script, None if kept else NOT_KEPT):
        if each is not None:
            context.add_init_script(each)
    page = context.new_page()
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    return page


def send(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def hold_next(page: Page, tokens: int) -> None:
    """Hold the next answer of the page's own model after so many tokens, until it is stopped or the page ends."""
    page.evaluate(HOLD_NEXT, tokens)


def click_and_see(page: Page, selector: str, words: str) -> None:
    """Click a button that shows the words for a moment only, which a test on a busy machine would miss."""
    page.eval_on_selector(selector, SEE, words)
    page.click(selector)
    page.evaluate("() => window.seen")


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


@contextmanager
def scripted_page(browser: Browser, server: PageServer, *, kept: bool = False) -> Iterator[Page]:
    """Open the chat page with its model. Its console must stay silent, and it may only send requests to its own
    host. ``kept`` as in `open_page`.
    """
    problems: list[str] = []
    page = open_page(browser, problems, kept=kept)
    page.on(
        "request",
        lambda request: None if request.url.startswith((server.url, "blob:")) else problems.append(request.url),
    )
    page.goto(server.url)
    wait_until_ready(page)
    yield page
    page.context.close()
    assert problems == []


def wait_until_ready(page: Page) -> None:
    """Wait until the model is loaded, and keep its own way to generate."""
    page.wait_for_selector("body[data-state=ready]")
    page.evaluate("() => { window.generate = window.nearfar.engine.generate; }")


def start_over(page: Page) -> Page:
    """The page without a conversation, on a desk, with answers of the model of at most four tokens."""
    resize(page, DESK)
    page.evaluate("() => { window.nearfar.engine.generate = window.generate; }")
    if page.is_visible("#new-chat"):
        new_chat(page)
    page.fill("#max-tokens", "4")
    return page


def script(page: Page, *pieces: str | None) -> None:
    """The next answers consist of these pieces; None waits until `release`."""
    page.evaluate(SCRIPTED, list(pieces))


def requests(page: Page) -> Sequence[Sequence[dict[str, Any]]]:
    messages: Sequence[Sequence[dict[str, Any]]] = page.evaluate("() => window.requests")
    return messages
