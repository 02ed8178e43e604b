"""Prompts that a server computes for a page, in headless Chromium: a slow device computes short prompts itself and has
long ones from the server, with the tokens of an answer that it computes alone, and never those of another model.

The page's clock is the test's: the device reads 15 tokens a second, a request takes three seconds on its way, and the
link has 16 kB a second, however busy this machine is (test_far_links.py has a real one). Both sides have pages of 4
bits, so both round alike.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from fake_models import FakeModels
from far_page import executor_of
from faulty_server import serve
from light_bundle import lighten
from live_server import live_server
from page_model import page_bundle
from playwright.sync_api import Browser, Page
from waiting import WAIT_SECONDS

from nearfar.compiler.browser.page_server import PAGE
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.far_prefill import blocks
from nearfar.server_fallback.far_prefill.blocks import Counts
from nearfar.server_fallback.schema.prefill import PrefillRequest

READY = "body[data-state=ready]"
PAGE_SCRIPT = """
import { Engine } from "./nearfar.js";
import { Hybrid } from "./hybrid.js";

const LATENCY_MS = 3000;
const BYTES_PER_MS = 16;
let nowMs = 0;
const clock = { now: () => nowMs, date: () => Date.now(), after: (ms, then) => {
    const timer = setTimeout(then, ms);
    return () => clearTimeout(timer);
} };
// The link: it takes the test's time, not this machine's.
const linked = async (url, init) => {
    nowMs += LATENCY_MS;
    const response = await fetch(url, init);
    window.sent.push([new URL(url).pathname, init.body ? JSON.parse(init.body) : null]);
    const counted = new TransformStream({ transform(part, out) {
        nowMs += part.length / BYTES_PER_MS;
        out.enqueue(part);
    } });
    return new Response(response.body?.pipeThrough(counted), response);
};
window.sent = [];
window.open_ = async (far, model, changes = {}) => {
    window.nf?.close();
    window.engine ??= await Engine.load("./bundle/", { store: false, tuning: false });
    const timeouts = { near_first_token_ms: 600_000, far_first_token_ms: 600_000, between_tokens_ms: 600_000 };
    window.nf = await Hybrid.create({
        near: window.engine,
        far: { baseURL: far, model },
        policy: { version: 1, mode: "prefer-near", timeouts, prefill: { min_tokens: 32 }, ...changes },
        probe: { speed: { prefill_tokens_per_second: 15, decode_tokens_per_second: 5 } },
        fetch: linked,
        clock,
    });
};
window.ask = async (content, params = {}) => {
    window.sent.length = 0;
    const answer = await window.nf.chat.completions.create({
        messages: [{ role: "user", content }], max_tokens: 16, temperature: 0, ...params,
    });
    const { last, ...counts } = window.nf.prefill ?? {};
    const told = last && { ...last, error: last.error?.details?.code ?? null };
    return { text: answer.choices[0].message.content, side: answer.route.side, last: told, counts,
        cached: answer.usage.prompt_tokens_details.cached_tokens,
        queueMs: answer.usage.queue_ms ?? 0, asked: window.sent.map(([path]) => path) };
};
// The answer of the device alone, whose cache is empty.
window.alone = async (content) => {
    const { engine } = window;
    await new Promise((resolve) => setTimeout(resolve));
    if (!engine.cacheHost.tokens.forgetAll()) throw new Error("the engine is busy");
    const answer = await engine.chat.completions.create({
        messages: [{ role: "user", content }], max_tokens: 16, temperature: 0,
    });
    if (!engine.cacheHost.tokens.forgetAll()) throw new Error("the engine is busy");
    return answer.choices[0].message.content;
};
document.body.dataset.state = "ready";
"""
# A token for each byte.
LONG = ("The harbour master counts the boats, and writes their names in a blue book. " * 3)[:200]
SHORT = "S" + LONG[1:60]


class Other(LocalExecutor):
    """Computes other tokens than the client's, as a model with other weights computes other numbers."""

    def prefill(self, request: PrefillRequest, call: Call, counts: Counts) -> AsyncGenerator[bytes, None]:
        prompt = [token + 1 for token in request.prompt]
        return super().prefill(request.model_copy(update={"prompt": prompt}), call, counts)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prefill")
    for name in ("nearfar.js", "hybrid.js", "prefill.js", "masks.js"):
        shutil.copy(PAGE.parent / name, folder)
    (folder / "index.html").write_text(f"<body><script type=module>{PAGE_SCRIPT}</script></body>")
    shutil.copytree(page_bundle(kv="q4"), folder / "bundle")
    lighten(folder / "bundle")
    server = serve(folder)
    yield f"{server.url}index.html"
    server.stop()


@pytest.fixture(scope="module")
def page(browser: Browser, chromium: str, site: str) -> Iterator[Page]:  # noqa: ARG001
    context = browser.new_context()
    context.set_default_timeout(WAIT_SECONDS * 1000)
    try:
        page = context.new_page()
        page.goto(site)
        page.wait_for_selector(READY, state="attached")
        yield page
    finally:
        context.close()


@pytest.fixture(scope="module")
def far(site: str) -> Iterator[str]:
    """A server with the page's model, "fake", and with "other"."""
    clock = count()
    with pytest.MonkeyPatch.context() as patch:
        # Each part takes it a hundredth of a second.
        patch.setattr(blocks, "time", SimpleNamespace(monotonic=lambda: next(clock) / 100))
        bundle = page_bundle(kv="q4")
        executors: Any = (executor_of(bundle, "fake"), {"other": executor_of(bundle, "other", Other)})
        with live_server(FakeModels(*executors), ApiConfig(cors_origins=(site.removesuffix("/index.html"),))) as server:
            yield f"http://127.0.0.1:{server.port}/v1"


def opened(page: Page, far: str, model: str = "fake", **changes: Any) -> None:
    page.evaluate("(args) => open_(...args)", [far, model, changes])


def ask(page: Page, content: str, **params: Any) -> dict[str, Any]:
    answer: dict[str, Any] = page.evaluate("([content, params]) => ask(content, params)", [content, params])
    return answer


def test_a_slow_device_has_long_prompts_from_the_server_and_computes_short_ones(page: Page, far: str) -> None:
    opened(page, far)
    expected = {content: page.evaluate("(content) => alone(content)", content) for content in (SHORT, LONG)}
    short = ask(page, SHORT)
    assert (short["side"], short["text"], short["asked"]) == ("near", expected[SHORT], [])
    assert short["last"]["reason"] == "later"
    assert short["last"]["near_seconds"] < 4.5
    # The round trip and the pages that the device computes to check what comes.
    assert short["last"]["far_seconds"] is None
    long = ask(page, LONG)
    assert (long["side"], long["text"]) == ("near", expected[LONG])
    assert long["asked"] == ["/v1/nearfar/prefill"]
    assert (long["last"]["side"], long["last"]["reason"]) == ("far", "explores")
    assert long["cached"] == 192
    assert long["last"]["tokens"] == 192 - 16
    assert max(long["last"]["differences"]) < 0.02
    assert long["counts"] == {"asked": 1, "used": 1, "tokens": 176, "bytes": long["last"]["bytes"], "differed": 0}
    assert long["last"]["bytes"] == 12 * 640
    # The time on the way is not that of the device: 3 s, and 7,680 bytes.
    assert long["queueMs"] == pytest.approx(3480, abs=200)
    # Its pages are the device's now.
    assert ask(page, LONG)["asked"] == []


def test_pages_of_another_model_are_not_used(page: Page, far: str) -> None:
    opened(page, far, "other")
    prompt = "X" + LONG[1:]
    expected = page.evaluate("(content) => alone(content)", prompt)
    answer = ask(page, prompt)
    assert (answer["side"], answer["text"]) == ("near", expected)
    assert (answer["last"]["side"], answer["last"]["reason"]) == ("near", "differs")
    assert answer["last"]["error"] == "prefill_differs"
    assert answer["last"]["differences"][0] > 1
    assert answer["counts"]["differed"] == 1
    # The server is not asked again.
    assert ask(page, "Y" + LONG[1:])["asked"] == []


@pytest.mark.parametrize("params", [{"labels": ["private"]}, {"pin": "near"}])
def test_a_prompt_that_must_stay_is_not_sent(page: Page, far: str, params: dict[str, Any]) -> None:
    opened(page, far)
    answer = ask(page, f"{len(str(params))} {LONG[3:]}", **params)
    assert (answer["side"], answer["asked"]) == ("near", [])
    assert answer["counts"]["asked"] == 0


def test_what_a_pattern_keeps_or_masks_and_no_budget_allows_is_not_sent(page: Page, far: str) -> None:
    prompt = f"my number is 5551234. {LONG[22:]}"
    opened(page, far, private={"patterns": ["[0-9]{7}"]})
    assert ask(page, prompt)["asked"] == []
    opened(page, far, budget={"far_requests_per_day": 0})
    assert ask(page, f"b{prompt[1:]}")["asked"] == []
    masks = {"patterns": [{"kind": "PHONE", "pattern": "[0-9]{7}"}]}
    opened(page, far, private={"masks": masks})
    assert ask(page, f"a{prompt[1:]}")["asked"] == []
    opened(page, far, private={"masks": masks})
    assert ask(page, f"My name is nobody. {LONG[19:]}")["asked"] == ["/v1/nearfar/prefill"]
