"""Near and far as one, in headless Chromium: the page's engine runs the demo model on WebGPU, `nearfar serve` a model on the CPU.

Answers go where they should, change sides where they must, and never leave where they are private. Pictures go to build/screenshots.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from light_bundle import lighten
from page_looks import DESK, NAMELESS, SCREENSHOTS, fact, look
from playwright.sync_api import Browser, Page
from recording_proxy import RecordingProxy, recording_proxy

from nearfar.compiler.browser.page_server import PageServer

TIMEOUT_MS = 180_000
# What is served far.
FAR_MODEL = "demo-far"
EASY, HARD, STORY = "what is 27 + 58?", "what is 12 + 30 + 7?", "tell me a story about a fox"
# Three numbers are too many for near, says this predictor. What failed may be asked again at once, for the next test.
POLICY: dict[str, Any] = {
    "version": 1,
    "mode": "auto",
    "quality": {
        "predictor": {
            "version": 1,
            "features": ["numbers"],
            "buckets": 1,
            "mean": [1.25],
            "scale": [0.1],
            "near": {"weights": [-5.0, 0.0], "bias": 0.0},
            "far": {"weights": [0.0, 0.0], "bias": 5.0},
            "calibration": {"near": [1.0, 0.0], "far": [1.0, 0.0]},
            "fitted": {"pairs": 1, "date": "2026-01-01", "wanted": {"quality": 0.9}},
        },
        "threshold": 0.1,
    },
    "retries": 0,
    "breaker": {"failures": 100, "open_ms": 1},
}
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


@pytest.fixture(scope="module")
def policy_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy that the page reads whenever it connects."""
    path = tmp_path_factory.mktemp("policy") / "policy.json"
    path.write_text(json.dumps(POLICY))
    return path


@pytest.fixture(scope="module")
def near_server(policy_file: Path, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:  # noqa: ARG001
    """The page's server. Its bundle is compiled while the far server starts, which has to know its address."""
    with PageServer(tmp_path_factory.mktemp("near") / "demo", policy=policy_file) as server:
        yield server


@pytest.fixture(scope="module")
def far_server(near_server: PageServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordingProxy]:
    """`nearfar serve`, with a proxy before it."""
    from nearfar.compiler.compile import CompileOptions, compile_model
    from nearfar.compiler.demo import CHECKPOINT

    folder = tmp_path_factory.mktemp("far")
    command = [sys.executable, "-m", "nearfar.compiler.cli", "serve", FAR_MODEL, "--target", "cpu", "--port", "0"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--cors-origin", near_server.origin],
            stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, "NEARFAR_CACHE": str(folder), "COLUMNS": "120"},
        )  # fmt: skip
    assert process.stdout is not None
    with process.stdout as printing:
        try:
            compile_model(str(CHECKPOINT), near_server.bundle, CompileOptions(activations=("float32",), self_test=False))
            lighten(near_server.bundle)
            # The last line of what it prints.
            line = next((line for line in printing if line.startswith("curl ")), None)
            assert line is not None, (folder / "log").read_text()
            with recording_proxy(int(re.findall(r"http://127\.0\.0\.1:(\d+)", line)[0])) as proxy:
                yield proxy
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def loaded(browser: Browser, near_server: PageServer, far_server: RecordingProxy) -> Iterator[Page]:
    """The chat page with both sides, loaded once."""
    context = browser.new_context(viewport={"width": DESK[0], "height": DESK[1]})
    context.set_default_timeout(TIMEOUT_MS)
    context.add_init_script(f"({KEEP_DEVICES})()")
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{near_server.url}?{urlencode({'far': far_server.url, 'policy': './policy.json'})}")
    page.wait_for_selector("body[data-sides]")
    yield page
    context.close()
    assert errors == []


@pytest.fixture
def chat(loaded: Page, far_server: RecordingProxy) -> Page:
    """The page without a conversation; the far side answers, the network is there, nothing is pinned."""
    far_server.come_back()
    if loaded.is_visible("#new-chat"):
        loaded.click("#new-chat")
    loaded.check("#network")
    pin(loaded, "auto")
    return loaded


@pytest.fixture
def route_by(chat: Page, policy_file: Path) -> Iterator[Callable[..., None]]:
    """route_by(key=value, ...) connects the page by a policy that differs so, for the rest of the test."""

    def connect(**changes: Any) -> None:
        policy_file.write_text(json.dumps({**POLICY, **changes}))
        chat.evaluate("() => { document.getElementById('far-details').open = true; }")
        chat.click("#far-connect")
        chat.wait_for_selector("#far-details:not([open])")

    yield connect
    connect()


def pin(page: Page, side: str) -> None:
    page.click(f"#pin label:has(input[value={side}])")


def send(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def ended(page: Page, index: int = 0) -> dict[str, str]:
    """An answer when it is over: its text, who wrote its end, and why."""
    answer = page.locator(".answer").nth(index)
    page.wait_for_selector(f".answer[data-state=done] >> nth={index}")
    problem = answer.locator(".problem")
    if problem.count():
        return {"problem": problem.text_content() or ""}
    return {
        "text": answer.locator(".text").text_content() or "",
        "side": answer.get_attribute("data-side") or "",
        "reason": answer.get_attribute("data-reason") or "",
    }


def tell_a_story_far(page: Page, far_server: RecordingProxy) -> str:
    """Far begins a story and is held in its middle; what stands of it then."""
    # Three numbers, for the predictor.
    far_server.hold(8)
    send(page, f"{STORY} 1 2 3")
    return begun(page)


def begun(page: Page) -> str:
    """What stands of an answer that is held in its middle."""
    page.wait_for_function("() => (document.querySelector('.answer .text')?.textContent ?? '').length > 20")
    return page.text_content(".answer .text") or ""


def assert_goes_on(page: Page, before: str, side: str, reason: str) -> None:
    """One answer, which begins with what stood there and is ended by the other side, with one mark at that place."""
    answer = ended(page)
    assert (answer["side"], answer["reason"]) == (side, reason)
    assert answer["text"].startswith(before)
    assert answer["text"].count("The end.") == 1
    assert answer["text"].endswith("The end.")
    assert page.locator(".answer .mark").count() == 1
    # Where the mark stands is where the other side begins.
    first = page.text_content(".answer .part >> nth=0") or ""
    assert fact(page, 0, "Changed sides") == f"after {len(first)} characters"


def test_what_is_easy_stays_near_and_what_is_hard_goes_far(chat: Page, far_server: RecordingProxy) -> None:
    before = len(far_server.received)
    send(chat, EASY)
    assert ended(chat) == {"text": "27 + 58 = 85", "side": "near", "reason": "quality"}
    assert len(far_server.received) == before
    send(chat, HARD)
    hard = ended(chat, 1)
    assert (hard["side"], hard["reason"]) == ("far", "quality")
    assert HARD.encode() in far_server.received
    assert fact(chat, 1, "Answered") == f"by {far_server.url.removeprefix('http://')}"
    assert chat.locator(".mark").count() == 0


def test_a_pinned_side_answers(chat: Page) -> None:
    pin(chat, "far")
    send(chat, EASY)
    assert ended(chat) == {"text": "27 + 58 = 85", "side": "far", "reason": "pinned"}
    pin(chat, "near")
    send(chat, HARD)
    assert (ended(chat, 1)["side"], ended(chat, 1)["reason"]) == ("near", "pinned")


def test_nothing_of_a_private_message_leaves_and_all_that_carry_it_are_private(chat: Page, far_server: RecordingProxy) -> None:
    asked: list[str] = []
    chat.on("request", lambda request: asked.append(request.url))
    before = bytes(far_server.received)
    pin(chat, "far")
    chat.click("#private")
    assert chat.is_disabled("#pin input[value=far]")
    assert chat.is_checked("#pin input[value=auto]")
    send(chat, f"my diary says quokka: {HARD}")
    assert (ended(chat)["side"], ended(chat)["reason"]) == ("near", "private")
    assert chat.locator(".question .icon").count() == 1
    assert chat.is_disabled("#private")
    assert "every message carries the private one along" in (chat.text_content("#privacy") or "")
    send(chat, HARD)
    assert (ended(chat, 1)["side"], ended(chat, 1)["reason"]) == ("near", "private")
    assert bytes(far_server.received) == before
    assert asked == []
    chat.click("#new-chat")
    assert chat.get_attribute("#private", "aria-pressed") == "false"
    send(chat, HARD)
    assert ended(chat)["side"] == "far"
    assert b"quokka" not in far_server.received


def test_where_the_server_dies_in_mid_answer_near_goes_on(chat: Page, far_server: RecordingProxy) -> None:
    before = tell_a_story_far(chat, far_server)
    far_server.die()
    assert_goes_on(chat, before, "near", "far_failed")


def test_where_the_network_goes_in_mid_answer_near_goes_on_and_answers_what_follows(chat: Page, far_server: RecordingProxy) -> None:
    before = tell_a_story_far(chat, far_server)
    chat.click("#network")
    assert_goes_on(chat, before, "near", "far_failed")
    far_server.release()
    sent = len(far_server.received)
    send(chat, HARD)
    assert (ended(chat, 1)["side"], ended(chat, 1)["reason"]) == ("near", "offline")
    assert len(far_server.received) == sent
    pin(chat, "far")
    send(chat, HARD)
    assert "problem" in ended(chat, 2)


def test_where_near_is_late_far_is_asked_as_well_and_the_first_wins(chat: Page, route_by: Callable[..., None]) -> None:
    route_by(timeouts={"hedge_after_ms": 300})
    chat.evaluate("() => window.nearfar.engine.pause()")
    send(chat, EASY)
    answer = ended(chat)
    chat.evaluate("() => window.nearfar.engine.resume()")
    assert answer == {"text": "27 + 58 = 85", "side": "far", "reason": "near_late"}
    assert chat.locator(".mark").count() == 0


def test_where_far_is_late_near_answers(chat: Page, route_by: Callable[..., None], far_server: RecordingProxy) -> None:
    route_by(timeouts={"far_first_token_ms": 300})
    far_server.hold(0)
    send(chat, HARD)
    answer = ended(chat)
    assert (answer["side"], answer["reason"]) == ("near", "far_timeout")
    assert chat.locator(".mark").count() == 0


def test_where_near_is_unsure_far_goes_on_from_its_words(chat: Page, route_by: Callable[..., None]) -> None:
    # No answer is as sure as that.
    route_by(escalation={"then": "continue", "window_tokens": 2, "min_mean_logprob": 0.0})
    send(chat, EASY)
    assert ended(chat) == {"text": "27 + 58 = 85", "side": "far", "reason": "escalated_logprob"}
    assert chat.locator(".answer .mark").count() == 1
    assert "the near model became unsure" in (chat.get_attribute(".answer .mark", "aria-label") or "")


def test_a_server_that_cannot_be_one_of_two_sides_is_told_and_the_page_goes_on_as_before(
    chat: Page, near_server: PageServer, far_server: RecordingProxy
) -> None:
    assert FAR_MODEL in (chat.text_content("#far-state") or "")
    chat.click("#far-details summary")
    chat.fill("#far-url", near_server.url)
    chat.click("#far-connect")
    chat.wait_for_selector("#far-problem", state="visible")
    assert "no /v1/nearfar/about" in (chat.text_content("#far-problem") or "")
    send(chat, HARD)
    assert ended(chat)["side"] == "far"
    chat.fill("#far-url", far_server.url)
    chat.click("#far-connect")
    chat.wait_for_selector("#far-details:not([open])")
    assert chat.is_hidden("#far-problem")


def test_both_sides_read_well_in_light_and_dark_on_a_desk_and_a_phone(chat: Page, far_server: RecordingProxy) -> None:
    send(chat, EASY)
    ended(chat)
    send(chat, HARD)
    ended(chat, 1)
    chat.click("#new-chat")
    tell_a_story_far(chat, far_server)
    chat.click("#network")
    ended(chat)
    chat.check("#network")
    chat.click("#private")
    send(chat, EASY)
    ended(chat, 1)
    for shown in look(chat):
        chat.screenshot(path=SCREENSHOTS / f"hybrid-{shown}.png")
    assert chat.evaluate(NAMELESS) == []


def test_where_the_device_is_lost_in_mid_answer_far_goes_on(chat: Page) -> None:
    """The last one: its page has no device any more."""
    chat.evaluate(
        """() => {
            window.noMore = true;
            new MutationObserver(() => {
                if ((document.querySelector(".answer .text")?.textContent ?? "").length > 20) window.devices.at(-1).destroy();
            }).observe(document.getElementById("conversation"), { childList: true, subtree: true, characterData: true });
        }"""
    )
    send(chat, STORY)
    assert_goes_on(chat, "Once upon a time", "far", "near_failed")
