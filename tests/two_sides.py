"""The chat page with two sides, as tests drive it: `nearfar serve` behind a proxy, answers that change sides, a choice of the side."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from chat_pages import TIMEOUT_MS, send
from light_bundle import lighten
from page_looks import DESK, fact
from playwright.sync_api import Browser, Page
from recording_proxy import RecordingProxy, recording_proxy

from nearfar.compiler.browser.page_server import PageServer
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.runtime.batch import Limits
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.local import LocalExecutor, TextModel
from nearfar.server_fallback.router.answer.signals import SIGNAL_TOKENS, near_signals
from nearfar.server_fallback.router.decision.situation import FarState, Message, NearSignals, NearState, Situation
from nearfar.server_fallback.router.fitting import ask_both
from nearfar.server_fallback.router.fitting.prompts import Prompt

# The model of the server.
FAR_MODEL = "demo-far"
STORY = "tell me a story about a fox"
# Devices are collected, so that a test can take them away; from `window.noMore` on there is no other.
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


@contextmanager
def serve_far(near_server: PageServer, folder: Path) -> Iterator[RecordingProxy]:
    """`nearfar serve` behind a proxy. The near server's bundle is compiled while it starts."""
    from nearfar.compiler.demo import CHECKPOINT
    from nearfar.compiler.pipeline.compile import CompileOptions, compile_model

    command = [sys.executable, "-m", "nearfar.compiler.cli", "serve", FAR_MODEL, "--target", "cpu", "--port", "0"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--cors-origin", near_server.origin],
            stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, "NEARFAR_CACHE": str(folder), "COLUMNS": "120"},
        )  # fmt: skip
    assert process.stdout is not None
    with process.stdout as printing:
        try:
            compile_model(
                str(CHECKPOINT), near_server.bundle, CompileOptions(activations=("float32",), self_test=False)
            )
            lighten(near_server.bundle)
            # The last line of what it prints.
            line = next((line for line in printing if line.startswith("curl ")), None)
            assert line is not None, (folder / "log").read_text()
            with recording_proxy(int(re.findall(r"http://127\.0\.0\.1:(\d+)", line)[0])) as proxy:
                yield proxy
        finally:
            process.kill()
            process.wait()


def connect(page: Page) -> None:
    """Anew, to the same server."""
    page.evaluate("() => { document.getElementById('far-details').open = true; }")
    page.click("#far-connect")
    page.wait_for_selector("#far-details:not([open])")


def pin(page: Page, side: str) -> None:
    page.click(f"#pin label:has(input[value={side}])")


# The text of an answer up to where it changes sides.
BEFORE_MARK = """() => {
    const range = document.createRange();
    range.setStart(document.querySelector(".answer .text"), 0);
    range.setEndBefore(document.querySelector(".answer .mark"));
    return range.toString();
}"""


def ended(page: Page, index: int = 0) -> dict[str, str]:
    """An answer when it is over: its text, who wrote its end, and why."""
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
    """A page of its own, whose browser the script has changed before."""
    context = browser.new_context(viewport={"width": DESK[0], "height": DESK[1]})
    context.set_default_timeout(TIMEOUT_MS)
    context.add_init_script(script)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert errors == []


async def near_signals_in_python(bundle: Path, prompts: Sequence[str]) -> dict[str, NearSignals]:
    """What the near model itself tells of the prompts, on the numpy reference, as `nearfar router log` asks it."""
    opened = open_bundle(bundle)
    runner = ReferenceRunner(opened, limits=Limits(tokens=128, sequences=2, rows=128), activation="float32")
    near = LocalExecutor(TokenEngine(runner, TokenModel.of(opened.manifest)), TextModel.of(opened, "near"))
    found = {}
    for prompt in prompts:
        told: list[float] = []
        call = Call("signals", observe_prompt_logprobs=told.extend)
        asked = ask_both.request("near", Prompt(prompt=prompt), SIGNAL_TOKENS, logprobs=True)
        _, tokens, _ = await ask_both.answer(near, asked, call)
        found[prompt] = near_signals(tokens, told)
    await near.close()
    return found


@contextmanager
def far_alone(
    browser: Browser, broken: str, near_server: PageServer, far_server: RecordingProxy, bundle: str = "./bundle/"
) -> Iterator[Page]:
    """The page, whose model has not loaded, once the server answers."""
    far_server.come_back()
    with page_of(browser, broken) as page:
        page.goto(f"{near_server.url}?{urlencode({'far': far_server.url, 'bundle': bundle})}")
        page.click("#consent-accept")
        page.wait_for_selector("body[data-near=failed][data-state=ready]")
        yield page


def situation(prompt: str, signals: NearSignals | None) -> Situation:
    return Situation((Message("user", prompt),), NearState(available=True), FarState(online=True), near_signals=signals)


def tell_a_story_far(page: Page, far_server: RecordingProxy) -> str:
    """Far begins a story and is held in its middle; what stands of it then."""
    # Three numbers, for the predictor.
    far_server.hold(8)
    send(page, f"{STORY} 1 2 3")
    return begun(page)


def begun(page: Page) -> str:
    """What stands of an answer that is held in its middle."""
    page.wait_for_function("() => (document.querySelector('.answer .text')?.textContent ?? '').length > 20")
    return page.get_attribute(".answer .text", "data-markdown") or ""


def assert_goes_on(page: Page, before: str, side: str, reason: str) -> None:
    """One answer, which begins with what stood there and is ended by the other side, with one mark at that place."""
    answer = ended(page)
    assert (answer["side"], answer["reason"]) == (side, reason)
    assert answer["text"].startswith(before)
    assert answer["text"].count("The end.") == 1
    assert answer["text"].endswith("The end.")
    assert page.locator(".answer .mark").count() == 1
    # Where the mark stands is where the other side begins.
    first = page.evaluate(BEFORE_MARK)
    assert fact(page, 0, "Changed sides") == f"after {len(first)} characters"
