"""Masks of what the demo finder finds, in headless Chromium: it runs on WebGPU, and the network shows what leaves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from chat_pages import ask, markdown, open_page
from demo_finder.checkpoint import CONTEXT
from light_bundle import few_kernels, lighten
from made_once import kept_folder, made_once
from name_corpus import ENTITIES
from playwright.sync_api import Browser, Page, Route
from static_site import serve

from nearfar.compiler.browser.page_server import PAGE, PageServer
from nearfar.compiler.demo import FINDER_CHECKPOINT
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model

NAME = "Rosalind Fairweather"
ASK = """async ([text, entities]) => {
    const [{ Finder }, { Hybrid }] = await Promise.all([import("./finder.js"), import("./hybrid.js")]);
    const finder = await Finder.load("./finder/");
    const over = (entities) => Hybrid.create({ far: { baseURL: "https://far.test/v1" }, finder,
        policy: { version: 1, mode: "prefer-far", private: { masks: { entities } } } });
    const refused = await over([{ label: "private_person", kind: "PERSON" }]).catch(({ message }) => message);
    const nf = await over(entities);
    const { choices, route } = await nf.chat.completions.create({ messages: [{ role: "user", content: text }] });
    finder.engine.destroy();
    return { refused, answer: choices[0].message.content, masked: route.masked.map(({ text }) => text) };
}"""
MODEL = {"id": "big", "context": 4096, "tokenizer_sha256": None, "tools": True, "verify": False}


@pytest.fixture
def finder() -> Path:
    """The demo finder, with few kernels."""

    def make(folder: Path) -> None:
        options = CompileOptions(quantization="q8f16", activations=("float32",), context=CONTEXT)
        with few_kernels(tokens="many"):
            compile_model(str(FINDER_CHECKPOINT), folder, options)
        lighten(folder)

    return made_once(kept_folder("bundles") / "light-finder", make)


@pytest.fixture
def page(browser: Browser, chromium: str, finder: Path, tmp_path: Path) -> Iterator[Page]:  # noqa: ARG001
    (tmp_path / "finder").symlink_to(finder)
    for script in ("nearfar.js", "encoders.js", "hybrid.js", "masks.js", "finder.js"):
        shutil.copy(PAGE.parent / script, tmp_path)
    (tmp_path / "index.html").write_text("<body>")
    with serve(tmp_path) as url, browser.new_page() as opened:
        opened.goto(url)
        yield opened


def far_of(bodies: list[bytes]) -> Callable[[Route], None]:
    """A server that writes to the person of the last message."""

    def far(route: Route) -> None:
        headers = {"Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": "*"}
        if route.request.method == "OPTIONS":
            route.fulfill(headers=headers)
        elif route.request.url.endswith("/about"):
            route.fulfill(json={"api_version": 1, "models": [MODEL]}, headers=headers)
        else:
            bodies.append(route.request.post_data_buffer or b"")
            deltas = [({"content": "Dear [PERS"}, None), ({"content": "ON_1], yes."}, None), ({}, "stop")]
            events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in deltas]
            body = "".join(f"data: {event}\n\n" for event in [*map(json.dumps, events), "[DONE]"])
            route.fulfill(body=body, headers={**headers, "Content-Type": "text/event-stream"})

    return far


def require_hidden(bodies: list[bytes], shown: str) -> None:
    (sent,) = bodies
    assert shown in json.loads(sent)["messages"][0]["content"]
    assert b"Rosalind" not in sent
    assert b"Fairweather" not in sent


@pytest.mark.exhaustive
def test_far_receives_placeholders_for_what_the_page_s_finder_finds(page: Page) -> None:
    bodies: list[bytes] = []
    page.route("https://far.test/**", far_of(bodies))
    found = page.evaluate(ASK, [f"😀 My name is {NAME}. Please deliver the sofa tomorrow.", ENTITIES])
    assert found["answer"] == f"Dear {NAME}, yes."
    assert found["masked"] == ["😀 My name is [PERSON_1]. Please deliver the sofa tomorrow."]
    require_hidden(bodies, found["masked"][0])
    assert """'private_person' is the model's own name of a kind; write "label": "PERSON\"""" in found["refused"]


@pytest.mark.exhaustive
def test_the_chat_page_shows_what_its_finder_hides(
    browser: Browser,
    chromium: str,  # noqa: ARG001
    finder: Path,
    tmp_path: Path,
) -> None:
    bodies: list[bytes] = []
    with PageServer(tmp_path, finder=finder) as server:
        chat = open_page(browser, [])
        chat.route("https://far.test/**", far_of(bodies))
        chat.goto(f"{server.url}?{urlencode({'far': 'https://far.test', 'finder': './finder/'})}")
        chat.click("#consent-accept")
        chat.wait_for_selector("body[data-near=failed][data-state=ready]")
        ask(chat, f"My name is {NAME}. Please deliver the sofa tomorrow.")
        assert markdown(chat) == f"Dear {NAME}, yes."
        shown = chat.locator(".leaving q").all_text_contents()
        assert shown == ["My name is [PERSON_1]. Please deliver the sofa tomorrow."]
        require_hidden(bodies, shown[0])
        chat.context.close()
