"""Answers that a later page continues, in headless Chromium: after a reload in mid-answer, and after the end of the
worker that computes them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from conftest import ROOT
from faulty_server import serve
from light_bundle import light_copy
from page_model import page_bundle
from playwright.sync_api import Browser, Page

from nearfar.compiler.browser.page_server import PAGE

READY = "body[data-state=ready]"
PAGE_SCRIPT = """
import { Engine } from "./nearfar.js";
import { connectEngine } from "./client.js";
import { journalled } from "./journal.js";

// Sampled, with log-probabilities, by two choices whose tokens alternate.
const request = { messages: [{ role: "user", content: "tell me" }], max_tokens: 30, temperature: 1, seed: 5, n: 2,
    logprobs: true, stream: true };
const gpu = { store: false };
const onError = (error) => { throw error; };
// A page that is loaded again has written the last part a moment ago, or never.
const options = { flushTokens: 8, onError };

async function read(chunks, more = () => undefined) {
    const texts = ["", ""];
    const ids = new Set();
    for await (const { id, choices } of chunks) {
        ids.add(id);
        for (const { index, logprobs } of choices)
            for (const { token_id, logprob } of logprobs?.content ?? []) texts[index] += `${token_id}:${logprob} `;
        await more(texts[0].split(" ").length - 1);
    }
    return { texts, ids: [...ids] };
}

window.engine = async () => journalled(await Engine.load("./bundle/", gpu), options);
window.inWorker = async () => {
    window.worker = new Worker("./worker.js", { type: "module" });
    return journalled(await connectEngine(window.worker, "./bundle/", gpu), options);
};
window.whole = async (engine) => (await read(await engine.chat.completions.create(request))).texts;
window.begin = async (engine, count, then) => {
    const chunks = await engine.chat.completions.create(request, { id: "x" });
    let isCalled = false;
    await read(chunks, (tokens) => {
        // Chunks also arrive while a page is loaded again, and a second call would end its loading.
        if (tokens < count || isCalled) return;
        isCalled = true;
        return then();
    });
};
// Reloads the page once a part of the answer is written, which takes as long as the machine needs.
window.written = async (engine) => {
    const pause = () => new Promise((resolve) => setTimeout(resolve, 10));
    while (((await engine.journals.list())[0]?.tokens ?? 0) < 8) await pause();
    location.reload();
    await new Promise(() => undefined);
};
window.resume = async (engine) => {
    const [before] = await engine.journals.list();
    const { answer } = await engine.journals.resume("x");
    const { texts, ids } = await read(answer);
    const [after] = await engine.journals.list();
    await engine.journals.delete("x");
    return { texts, ids, before: [before.tokens, before.done], after: [after.tokens, after.done],
        left: await engine.journals.list() };
};
document.body.dataset.state = "ready";
"""


@pytest.fixture(scope="module")
def page(browser: Browser, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:  # noqa: ARG001
    site = tmp_path_factory.mktemp("journal")
    for name in ("nearfar.js", "worker.js", "client.js", "journal.js"):
        shutil.copy(PAGE.parent / name, site)
    (site / "worker.js").rename(site / "serve.js")
    (site / "worker.js").write_text('import { serveEngine } from "./serve.js"; serveEngine(self);')
    (site / "index.html").write_text(f"<body><script type=module>{PAGE_SCRIPT}</script></body>")
    light_copy(page_bundle(), site / "bundle")
    server = serve(site)
    context = browser.new_context()
    context.set_default_timeout(120_000)
    try:
        page = context.new_page()
        page.goto(f"{server.url}index.html")
        page.wait_for_selector(READY, state="attached")
        yield page
    finally:
        context.close()
        server.stop()


# test_conversations_page.py continues an answer after a reload, and web/test/journal has faults at every point.
@pytest.mark.exhaustive
def test_a_page_that_is_loaded_again_in_mid_answer_ends_it_with_the_same_tokens(page: Page) -> None:
    whole = page.evaluate("async () => whole(await engine())")
    assert [len(text.split()) for text in whole] == [30, 30]
    with page.expect_navigation():
        # The evaluation ends with its page.
        page.evaluate("() => void engine().then((engine) => begin(engine, 12, () => written(engine)))")
    page.wait_for_selector(READY, state="attached")
    result = page.evaluate("async () => resume(await engine())")
    tokens, done = result.pop("before")
    # Of two choices; the last part of fewer than 8 tokens is lost, or also one that was being written.
    assert 8 <= tokens < 60
    assert tokens % 8 == 0
    assert not done
    assert result == {"texts": whole, "ids": ["x"], "after": [60, True], "left": []}


# test_workers.py has the error of a worker that ends, and web/test/journal answers after errors.
@pytest.mark.exhaustive
def test_an_answer_whose_worker_ends_is_continued_by_another_worker(page: Page) -> None:
    result = page.evaluate("""async () => {
        const first = await inWorker();
        const whole = await window.whole(first);
        const failed = await begin(first, 12, () => window.worker.terminate()).catch((error) => error.code);
        return { failed, whole, ...(await resume(await inWorker())) };
    }""")
    assert result["failed"] == "worker_error"
    assert result["texts"] == result["whole"]
    assert result["before"][1] is False
    assert result["left"] == []


@pytest.mark.exhaustive
def test_200_answers_are_the_same_after_faults_at_random_points(node: str) -> None:
    command = [
        node,
        "node_modules/vitest/vitest.mjs",
        "run",
        "test/journal/faults.test.ts",
        "test/journal/hybrid.test.ts",
    ]
    done = subprocess.run(
        command,
        cwd=ROOT / "web",
        env={**os.environ, "NEARFAR_FAULTS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
