"""Embeddings in headless Chromium, from an engine in a worker: equal to the reference's."""

from __future__ import annotations

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
from nearfar.compiler.text.tokenizer import Tokenizer

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
# Texts of only the end token, of several pages, and of a complete context; more than the engine embeds in parallel.
TEXTS = ["", "a", "the quick brown fox", "é" * 40, "x" * 127, "jumps over"]


@pytest.fixture(scope="module")
def address(compile_tiny: CompileTiny, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:  # noqa: ARG001
    site = tmp_path_factory.mktemp("embeddings")
    for script in ("client.js", "worker.js"):
        shutil.copy(PAGE.parent / script, site)
    (site / "index.html").write_text('<!doctype html><body><script type="module" src="start.js"></script>')
    (site / "start.js").write_text(START)
    (site / "engine_worker.js").write_text('import { serveEngine } from "./worker.js";\nserveEngine(self);\n')
    shutil.copytree(compile_tiny("embedding", "q4f16", context=128), site / "bundle")
    lighten(site / "bundle")
    with serve(site) as url:
        yield url


def test_vectors_are_those_of_the_reference(browser: Browser, address: str, compile_tiny: Callable[..., Path]) -> None:
    page = browser.new_page()
    page.set_default_timeout(120_000)
    page.goto(address)
    page.wait_for_selector("body[data-state=ready]", state="attached")
    answer, errors = page.evaluate(EMBED, TEXTS)
    page.close()
    bundle = open_bundle(compile_tiny("embedding", "q4f16", context=128))
    tokenizer, runner = Tokenizer(bundle.tokenizer_files()), ReferenceRunner(bundle, activation="float32")
    ids = [tokenizer.encode(text) for text in TEXTS]
    found = np.array([each["embedding"] for each in answer["data"]], np.float32)
    assert relative_error(found, np.stack([embed(runner, each) for each in ids])) < F32
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert "generates no text" in errors[0]
    assert "maximum context length is 128 tokens. However, input 0 has 129 tokens" in errors[1]
