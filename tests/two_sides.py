"""Helpers for the chat page with two sides: `nearfar serve` behind a proxy, pinned sides, answers that change sides."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from chat_pages import NOT_KEPT, new_chat, send
from page_looks import DESK, fact
from playwright.sync_api import Browser, BrowserContext, Page, Route
from recording_proxy import RecordingProxy, recording_proxy
from served_demo import compile_for_server, require_found, serving

from nearfar.compiler.browser.page_server import PAGE, PageServer
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.text_model import TextModel
from nearfar.server_fallback.router.answer.signals import SIGNAL_TOKENS, near_signals
from nearfar.server_fallback.router.decision.situation import FarState, Message, NearSignals, NearState, Situation
from nearfar.server_fallback.router.fitting import query_both
from nearfar.server_fallback.router.fitting.prompts import Prompt
from nearfar.server_fallback.router.hybrid import Hybrid
from nearfar.server_fallback.router.sides.far import Far

# The model of the server.
FAR_MODEL = "demo-far"
STORY = "tell me a story about a fox"
# Collects the devices, so that a test can destroy them. Once `window.noMore` is set, the browser gives no other device.
KEEP_DEVICES = """() => {
    window.devices = [];
    const { requestDevice } = GPUAdapter.prototype;
    GPUAdapter.prototype.requestDevice = async function (descriptor) {
        if (window.noMore) throw new DOMException("no device", "OperationError");
        const device = await requestDevice.call(this, descriptor);
        window.devices.push(device);
        return device;
    };
}"""
# Destroys the device as soon as an answer has 20 characters.
LOSE_DEVICE = """() => {
    window.noMore = true;
    new MutationObserver(() => {
        if ((document.querySelector(".answer .text")?.textContent ?? "").length > 20) window.devices.at(-1).destroy();
    }).observe(document.getElementById("conversation"), { childList: true, subtree: true, characterData: true });
}"""


@contextmanager
def serve_far(near_server: PageServer, folder: Path) -> Iterator[RecordingProxy]:
    """`nearfar serve` behind a proxy."""
    compile_for_server(FAR_MODEL, folder)
    arguments = [FAR_MODEL, "--target", "cpu", "--cors-origin", near_server.origin]
    with serving(*arguments, folder=folder) as (_, url):
        require_found(folder / "log")
        with recording_proxy(int(url.rpartition(":")[2])) as proxy:
            yield proxy


def connect(page: Page) -> None:
    """Connect to the same server again."""
    page.evaluate("() => { document.getElementById('far-details').open = true; }")
    page.click("#far-connect")
    page.wait_for_selector("#far-details:not([open])")


def pin(page: Page, side: str) -> None:
    page.click(f"#pin label:has(input[value={side}])")


NO_WEBGPU = "delete Navigator.prototype.gpu"


@dataclass(frozen=True)
class Failure:
    """How near fails: by a script, or by its bundle. ``words`` are parts of the notice."""

    words: tuple[str, str]
    script: str = ""
    bundle: str = "./bundle/"


CANNOT_RUN = "This device cannot run the model"
FAILURES = {
    "no WebGPU": Failure((CANNOT_RUN, "This browser has no WebGPU"), NO_WEBGPU),
    "no adapter": Failure((CANNOT_RUN, "no WebGPU adapter"), "GPU.prototype.requestAdapter = async () => null"),
    "no bundle": Failure(("The model did not load", "nowhere/manifest.json answers 404"), bundle="./nowhere/"),
}
# The text of an answer before it changes sides.
BEFORE_MARK = """() => {
    const range = document.createRange();
    range.setStart(document.querySelector(".answer .text"), 0);
    range.setEndBefore(document.querySelector(".answer .mark"));
    return range.toString();
}"""


def ended(page: Page, index: int = 0) -> dict[str, str]:
    """Wait for the end of an answer, and return its text, the side that wrote its end, and the reason."""
    answer = page.locator(".answer").nth(index)
    page.wait_for_selector(f".answer[data-state=done] >> nth={index}")
    problem = answer.locator(".problem")
    if problem.count():
        return {"problem": problem.text_content() or ""}
    return {
        "text": answer.locator(".text").get_attribute("data-markdown") or "",
        "side": answer.get_attribute("data-side") or "",
        "reason": answer.get_attribute("data-reason") or "",
    }


@contextmanager
def page_of(browser: Browser, script: str) -> Iterator[Page]:
    """Open a page in a context of its own. The script runs before those of the page."""
    context = browser.new_context(viewport={"width": DESK[0], "height": DESK[1]})
    context.add_init_script(script)
    context.add_init_script(NOT_KEPT)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert errors == []


@dataclass
class Opened:
    """A page of both sides, whose weights are paused until `load`."""

    page: Page
    weights: list[Route]
    loading: bool = True

    def open(self, url: str) -> None:
        self.page.route(
            "**/bundle/weights/*", lambda route: self.weights.append(route) if self.loading else route.continue_()
        )
        self.page.goto(url)
        self.page.click("#consent-accept")
        self.page.wait_for_selector("body[data-sides]")

    def load(self) -> None:
        self.loading = False
        for route in self.weights:
            route.continue_()
        self.page.wait_for_selector("body[data-near=ready]")


def near_signals_in_python(bundle: Path, prompts: Sequence[str]) -> dict[str, NearSignals]:
    """The near model's signals of the prompts on the numpy reference, as `nearfar router log` computes them."""

    async def computed() -> dict[str, NearSignals]:
        near = near_in_python(bundle)
        signals = {}
        for prompt in prompts:
            logprobs: list[float] = []
            call = Call("signals", observe_prompt_logprobs=logprobs.extend)
            request = query_both.request("near", Prompt(prompt=prompt), SIGNAL_TOKENS, logprobs=True)
            _, tokens, _ = await query_both.answer(near, request, call)
            signals[prompt] = near_signals(tokens, logprobs)
        await near.close()
        return signals

    # In another thread, because Playwright's event loop runs in this one.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, computed()).result()


def near_in_python(bundle: Path) -> LocalExecutor:
    """The near model on the numpy reference."""
    opened = open_bundle(bundle)
    runner = ReferenceRunner(opened, limits=Limits(tokens=128, sequences=2, rows=128), activation="float32")
    return LocalExecutor(TokenEngine(runner, TokenModel.of(opened.manifest)), TextModel.of(opened, "near"))


def on_both_sides(
    bundle: Path, far: RecordingProxy, rules: Mapping[str, Any], work: Callable[[Hybrid], Awaitable[None]]
) -> None:
    """``work`` with near in this process and the server as far."""

    async def run() -> None:
        policy = {"version": 1, "mode": "prefer-near", **rules}
        place = Far(far.url, model=FAR_MODEL)
        async with await Hybrid.create(near=near_in_python(bundle), far=place, policy=policy) as hybrid:
            await work(hybrid)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, run()).result()


@contextmanager
def far_alone(
    browser: Browser, broken: str, near_server: PageServer, far_server: RecordingProxy, bundle: str = "./bundle/"
) -> Iterator[Page]:
    """Open the page without its model, and wait until the server answers."""
    far_server.come_back()
    with page_of(browser, broken) as page:
        page.goto(f"{near_server.url}?{urlencode({'far': far_server.url, 'bundle': bundle})}")
        page.click("#consent-accept")
        page.wait_for_selector("body[data-near=failed][data-state=ready]")
        yield page


def situation(prompt: str, signals: NearSignals | None) -> Situation:
    return Situation((Message("user", prompt),), NearState(available=True), FarState(online=True), near_signals=signals)


def begin_a_story_far(page: Page, far_server: RecordingProxy) -> str:
    """Let far begin a story, pause it, and return the text so far."""
    for _ in range(5):
        far_server.hold(8)
        # The predictor sends a message with three numbers to far.
        send(page, f"{STORY} 1 2 3")
        while not far_server.holds and page.locator(".answer[data-state=done]").count() == 0:
            page.wait_for_timeout(20)
        if far_server.holds:
            page.wait_for_function("() => (document.querySelector('.answer .text')?.textContent ?? '').length > 20")
            return page.get_attribute(".answer .text", "data-markdown") or ""
        # On a busy machine, eight events may hold the whole story.
        new_chat(page)
    raise AssertionError("no story was longer than eight events")


def assert_continued(page: Page, before: str, side: str, reason: str) -> None:
    """Check that the answer begins with the earlier text, and that the other side ends it after one mark."""
    answer = ended(page)
    assert (answer["side"], answer["reason"]) == (side, reason)
    assert answer["text"].startswith(before)
    assert answer["text"].count("The end.") == 1
    assert answer["text"].endswith("The end.")
    assert page.locator(".answer .mark").count() == 1
    # The mark is at the position where the other side begins.
    first = page.evaluate(BEFORE_MARK)
    assert fact(page, 0, "Changed sides") == f"after {len(first)} characters"


# A page without the chat's code: `begin` and `resume` return the text of an answer that only far may write.
JOURNAL_PAGE = """<!doctype html><title>journal</title><script type="module">
    import { Hybrid } from "./hybrid.js";
    import { journalled } from "./journal.js";
    const request = { messages: [{ role: "user", content: "STORY" }], stream: true, temperature: 0 };
    const timeouts = { near_first_token_ms: 60000, far_first_token_ms: 60000, between_tokens_ms: 60000 };
    const policy = { version: 1, mode: "far-only", timeouts };
    const far = { baseURL: "FAR" };
    const hybrid = journalled(await Hybrid.create({ near: null, far, policy }), { flushTokens: 1 });
    window.text = "";
    async function read(chunks) {
        for await (const { choices } of chunks) window.text += choices[0]?.delta.content ?? "";
        return window.text;
    }
    window.begin = async (id) => read(await hybrid.chat.completions.create(request, { id }));
    window.resume = async (id) => read((await hybrid.journals.resume(id)).answer);
    window.running = async (id) => (await hybrid.journals.find(id)).running;
    document.title = "ready";
</script>""".replace("STORY", STORY)


def open_journal_page(context: BrowserContext, near_server: PageServer, far_server: RecordingProxy) -> Page:
    """A new page of `JOURNAL_PAGE`, at the origin that the server lets read its answers."""
    page = context.new_page()
    for name in ("hybrid.js", "journal.js"):
        page.route(f"**/{name}", lambda route: route.fulfill(path=PAGE.parent / route.request.url.rpartition("/")[2]))
    # A page that the test itself answers may not reach a local server.
    page.goto(f"{near_server.url}policy.json")
    page.set_content(JOURNAL_PAGE.replace("FAR", far_server.url))
    page.wait_for_function("document.title === 'ready'")
    return page


def generated_tokens(far_server: RecordingProxy) -> int:
    """The tokens of all answers of the server so far."""
    with urlopen(f"{far_server.url}/metrics") as metrics:
        lines = metrics.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("vllm:generation_tokens_total"))
