"""System messages whose keys and values stay across reloads, in headless Chromium: kept by the page, shared by tabs,
cleared, damaged, and shipped with the bundle.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_server import serve
from light_bundle import lighten
from page_model import page_bundle
from playwright.sync_api import Browser, Page
from waiting import WAIT_SECONDS

from nearfar.compiler import passes, quant
from nearfar.compiler.arch import by_model_type
from nearfar.compiler.browser.page_server import PAGE
from nearfar.compiler.bundle.check import manifest_file
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.bundle.manifest import MANIFEST_FILE
from nearfar.compiler.pipeline.prefixes import Prefix, with_prefixes
from nearfar.compiler.pipeline.self_test import Reference
from nearfar.compiler.pipeline.store import FolderStore
from nearfar.compiler.runtime.page_groups import group_windows, live_pages
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.targets.webgpu.lower import MAX_BINDING_BYTES

READY = "body[data-state=ready]"
# A token for each byte, and one before all.
SYSTEM = "You count boats. " * 7
FULL = 112
PAGE_SCRIPT = """
import { Engine } from "./nearfar.js";
import { prefixes } from "./prefixes.js";

const SYSTEM = "You count boats. ".repeat(7);

// Greedy and sampled answers, and how many tokens of each prompt were not computed.
window.answers = async (options, bundle = "./bundle/") => {
    const engine = await Engine.load(bundle, { store: false, ...options });
    const found = [];
    for (const sampling of [{ temperature: 0 }, { temperature: 1, seed: 5 }]) {
        const messages = [{ role: "system", content: SYSTEM }, { role: "user", content: "who?" }];
        const ids = [];
        for await (const event of engine.generate(messages, { maxTokens: 8, ...sampling })) {
            if (event.type === "token") ids.push(event.tokenId);
            else found.push({ ids, cached: event.timings.cachedTokens });
        }
    }
    window.engine = engine;
    return found;
};
// As chats do, through the API.
window.chat = async (messages) => {
    const { usage } = await window.engine.chat.completions.create({ messages, max_tokens: 1 });
    return usage.prompt_tokens_details.cached_tokens;
};
window.kept = async () => (await prefixes.list()).map(({ model, tokens }) => [model, tokens]);
window.clear = () => prefixes.clear();
window.damage = async () => {
    const root = await (await navigator.storage.getDirectory()).getDirectoryHandle("nearfar-prefixes");
    const folder = await root.getDirectoryHandle("prefixes");
    for await (const [name, handle] of folder.entries())
        if (name.endsWith(".pages")) {
            const bytes = new Uint8Array(await (await handle.getFile()).arrayBuffer());
            bytes[bytes.length - 1] ^= 1;
            const writer = await handle.createWritable();
            await writer.write(bytes);
            await writer.close();
        }
};
document.body.dataset.state = "ready";
"""
KEEP = {"prefixes": {"minUses": 1}}


def ship(folder: Path) -> None:
    """Add the prefix to a bundle, as a compile with --prefix does."""
    bundle = open_bundle(folder)
    manifest = bundle.manifest
    graph = by_model_type(manifest.spec.model_type).forward(manifest.spec, manifest.page_size, manifest.context)
    fused = passes.run_passes(graph, quant.by_name(manifest.quantization), MAX_BINDING_BYTES, manifest.kv)
    reference = Reference(bundle, graph, fused.parameters)
    ids = Tokenizer(bundle.tokenizer_files()).encode_chat([{"role": "system", "content": SYSTEM}])[:FULL]
    prefix = Prefix(ids, live_pages(group_windows(manifest), FULL, manifest.page_size))
    changed = with_prefixes(manifest, [prefix], FolderStore(folder), reference, lambda *_: None)
    (folder / MANIFEST_FILE).write_bytes(manifest_file(changed))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prefixes")
    for name in ("nearfar.js", "prefixes.js"):
        shutil.copy(PAGE.parent / name, folder)
    (folder / "index.html").write_text(f"<body><script type=module>{PAGE_SCRIPT}</script></body>")
    for name in ("bundle", "shipping"):
        shutil.copytree(page_bundle(), folder / name)
        lighten(folder / name)
    ship(folder / "shipping")
    server = serve(folder)
    yield f"{server.url}index.html"
    server.stop()


@pytest.fixture
def page(browser: Browser, chromium: str, site: str) -> Iterator[Page]:  # noqa: ARG001
    context = browser.new_context()
    context.set_default_timeout(WAIT_SECONDS * 1000)
    try:
        page = context.new_page()
        opened(page, site)
        yield page
    finally:
        context.close()


def opened(page: Page, site: str) -> None:
    page.goto(site)
    page.wait_for_selector(READY, state="attached")


def answers(page: Page, options: object = KEEP, bundle: str = "./bundle/") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.evaluate("([options, bundle]) => answers(options, bundle)", [options, bundle])
    return found


def ids(found: list[dict[str, Any]]) -> list[list[int]]:
    return [each["ids"] for each in found]


# web/test/prefixes has what is stored and found, test_store.py the browser's store, and the test below its pages.
@pytest.mark.exhaustive
def test_a_system_message_is_not_computed_again_after_a_reload_or_in_another_tab(page: Page, site: str) -> None:
    plain = answers(page, {})
    # The second answer continues the pages of the first one.
    assert [each["cached"] for each in plain] == [0, FULL]
    assert page.evaluate("kept()") == []
    answers(page)
    page.wait_for_function("async () => (await kept()).length === 1")
    page.reload()
    page.wait_for_selector(READY, state="attached")
    assert [each["cached"] for each in answers(page)] == [FULL, FULL]
    tab = page.context.new_page()
    opened(tab, site)
    again = answers(tab)
    assert again[0]["cached"] == FULL
    assert ids(again) == ids(plain)
    other = [{"role": "system", "content": "I" + SYSTEM[1:]}, {"role": "user", "content": "x"}]
    assert tab.evaluate("(messages) => chat(messages)", other) == 0


@pytest.mark.exhaustive
def test_what_is_damaged_or_cleared_is_computed(page: Page) -> None:
    plain = answers(page, KEEP)
    page.wait_for_function("async () => (await kept()).length === 1")
    page.evaluate("damage()")
    damaged = answers(page, {"prefixes": {"minUses": 100}})
    assert (damaged[0]["cached"], ids(damaged)) == (0, ids(plain))
    assert page.evaluate("kept()") == []
    answers(page, KEEP)
    page.wait_for_function("async () => (await kept()).length === 1")
    page.evaluate("clear()")
    assert page.evaluate("kept()") == []
    assert answers(page, {"prefixes": True})[0]["cached"] == 0


def test_the_first_page_does_not_compute_a_system_message_that_comes_with_the_bundle(page: Page) -> None:
    plain = answers(page, {"prefixes": False}, "./shipping/")
    assert plain[0]["cached"] == 0
    shipped = answers(page, {"prefixes": True}, "./shipping/")
    assert shipped[0]["cached"] == FULL
    # The model has float32 activations, in which both agree to a few units in the last place.
    assert ids(shipped) == ids(plain)
    question = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "other"}]
    assert page.evaluate("(messages) => chat(messages)", question) == FULL
