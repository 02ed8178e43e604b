"""Embeddings in headless Chromium, from an engine in a worker: equal to the reference's; and an index of documents."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import CompileTiny
from light_bundle import lighten
from playwright.sync_api import Browser
from static_site import serve
from tolerances import F32, relative_error

from nearfar.compiler.browser.page_server import PAGE
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.runtime.encoding import embed
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

START = """import { connectEngine } from "./client.js";
window.connect = () => connectEngine(new Worker("./engine_worker.js", { type: "module" }), "./bundle/");
document.body.dataset.state = "ready";
"""
EMBED = """async (input) => {
    const engine = await window.connect();
    const answer = await engine.embeddings.create({ input });
    const errors = [];
    for (const asking of [engine.completions.create({ prompt: "x" }), engine.embeddings.create({
        input: "x".repeat(128) })]) {
        errors.push(await asking.catch((error) => error.message));
    }
    engine.destroy();
    return [answer, errors];
}"""
REOPEN = """async () => {
    const { RetrievalIndex, IndexStore } = await import("./retrieval.js");
    const saved = (await (await IndexStore.open()).read("notes"));
    const embedder = { model: saved.model, dimensions: saved.dimensions, embed: () => Promise.reject() };
    const index = await RetrievalIndex.open("notes", embedder);
    const [hit] = await index.search("floating boats", { mode: "words" });
    const other = await RetrievalIndex.open("notes", { ...embedder, model: "other" }).catch((error) => error.message);
    return [hit.passage.text, hit.similarity, other];
}"""
ROOT = Path(__file__).parents[2]
# Texts of a few tokens, of several pages, and of a complete context; more than the engine embeds in parallel.
TEXTS = ["b", "a", "the quick brown fox", "é" * 40, "x" * 127, "jumps over"]


@pytest.fixture(scope="module")
def address(compile_light: CompileTiny, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:  # noqa: ARG001
    site = tmp_path_factory.mktemp("embeddings")
    for script in ("client.js", "worker.js", "encoders.js", "retrieval.js"):
        shutil.copy(PAGE.parent / script, site)
    (site / "index.html").write_text('<!doctype html><body><script type="module" src="start.js"></script>')
    (site / "start.js").write_text(START)
    example = re.search(r"```js document_search\.js\n(.*?)```", (ROOT / "web/README.md").read_text(), flags=re.DOTALL)
    assert example is not None
    (site / "document_search.js").write_text(example[1])
    (site / "engine_worker.js").write_text('import { serveEngine } from "./worker.js";\nserveEngine(self);\n')
    shutil.copytree(compile_light("embedding", "q4f16", context=128), site / "bundle")
    lighten(site / "bundle")
    with serve(site) as url:
        yield url


@pytest.mark.exhaustive
def test_vectors_are_those_of_the_reference(browser: Browser, address: str, compile_light: Callable[..., Path]) -> None:
    page = browser.new_page()
    page.goto(address)
    page.wait_for_selector("body[data-state=ready]", state="attached")
    answer, errors = page.evaluate(EMBED, TEXTS)
    page.close()
    bundle = open_bundle(compile_light("embedding", "q4f16", context=128))
    tokenizer, runner = Tokenizer(bundle.tokenizer_files()), ReferenceRunner(bundle, activation="float32")
    ids = [tokenizer.encode(text) for text in TEXTS]
    found = np.array([each["embedding"] for each in answer["data"]], np.float32)
    assert relative_error(found, np.stack([embed(runner, each) for each in ids])) < F32
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert "generates no text" in errors[0]
    assert "maximum context length is 128 tokens. However, input has 129 tokens" in errors[1]


# test_documents_page.py finds passages with an encoder in a worker and sends nothing; web/test/retrieval has the index.
@pytest.mark.exhaustive
def test_documents_are_found_from_the_browsers_storage_and_nothing_is_sent(browser: Browser, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    requests: list[tuple[str, str, bytes | None]] = []
    context.on("request", lambda request: requests.append((request.method, request.url, request.post_data_buffer)))
    page.goto(address)
    with page.expect_console_message(lambda message: message.text.startswith("found:")) as logged:
        page.evaluate("() => { void import('./document_search.js'); }")
    assert logged.value.text == "found: A bird builds a nest. in My notes Birds"
    page.reload()
    text, similarity, refusal = page.evaluate(REOPEN)
    assert text == "A boat floats on water."
    assert similarity is None
    assert "another embedding model" in refusal
    context.close()
    assert requests
    # Files of the site only, without a body; nothing of the texts is in an address.
    sent = [each for each in requests if each[0] not in ("GET", "HEAD") or not each[1].startswith(address) or each[2]]
    assert sent == []
    assert not any("boat" in url or "nest" in url for _, url, _ in requests)
