"""Near and far as one, in headless Chromium: the page's engine runs the demo model on WebGPU, `nearfar serve` a model on the CPU.

Answers go where they should, change sides where they must, and never leave where they are private; where there is no near, far answers.
Pictures go to build/screenshots.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from conftest import ROOT
from demo_model.traffic import part_of
from light_bundle import lighten
from page_looks import DESK, NAMELESS, SCREENSHOTS, fact, look
from playwright.sync_api import Browser, Page, Route
from recording_proxy import RecordingProxy, recording_proxy

from nearfar.compiler.browser.page_server import PageServer
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.runtime.batch import Limits
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.text_model import TextModel
from nearfar.server_fallback.router.answer.signals import SIGNAL_TOKENS, near_signals
from nearfar.server_fallback.router.decision.decide import decide
from nearfar.server_fallback.router.decision.policy import Policy
from nearfar.server_fallback.router.decision.situation import FarState, Message, NearSignals, NearState, Situation
from nearfar.server_fallback.router.fitting import ask_both
from nearfar.server_fallback.router.fitting.prompts import Prompt

TIMEOUT_MS = 180_000
# What is served far.
FAR_MODEL = "demo-far"
EASY, HARD, STORY = "what is 27 + 58?", "what is 12 + 30 + 7?", "tell me a story about a fox"
# Three numbers are too many for near, says this predictor: for tests of what comes after a decision. What failed may be asked again at
# once, for the next test.
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
DEMO_POLICY = ROOT / "server_fallback" / "router" / "fitting" / "demo_policy.json"
# Of a gain from the threshold.
MARGIN = 0.25
# A sum, spelling and small talk, which near was taught.
STAY = ("85+6=?", "Spelling: botid?", "introduce yourself")
# Near would spell this, but is unsure how.
UNSURE = "give me the letters of star?"
# The first is a sum of several, which far alone was taught.
GO = ("quick math: 64 plus 40 plus 7 plus 93.", UNSURE)
NO_WEBGPU = "delete Navigator.prototype.gpu"
# How near is lost: a script, the bundle, and what is told of it.
NO_ADAPTER = "GPU.prototype.requestAdapter = async () => null"
BROKEN = [
    pytest.param(
        NO_WEBGPU, "./bundle/", "This device cannot run the model", "This browser has no WebGPU", id="no WebGPU"
    ),
    pytest.param(NO_ADAPTER, "./bundle/", "This device cannot run the model", "no WebGPU adapter", id="no adapter"),
    pytest.param("", "./nowhere/", "The model did not load", "nowhere/manifest.json answers 404", id="no bundle"),
]
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
    from nearfar.compiler.demo import CHECKPOINT
    from nearfar.compiler.pipeline.compile import CompileOptions, compile_model

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


@dataclass
class Opened:
    """The page of both sides, whose weights do not come before they are let through."""

    page: Page
    weights: list[Route]
    loading: bool = True


@pytest.fixture(scope="module")
def opened(browser: Browser, near_server: PageServer, far_server: RecordingProxy) -> Iterator[Opened]:
    context = browser.new_context(viewport={"width": DESK[0], "height": DESK[1]})
    context.set_default_timeout(TIMEOUT_MS)
    context.add_init_script(f"({KEEP_DEVICES})()")
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    opened = Opened(page, [])
    page.route(
        "**/bundle/weights/*", lambda route: opened.weights.append(route) if opened.loading else route.continue_()
    )
    page.goto(f"{near_server.url}?{urlencode({'far': far_server.url, 'policy': './policy.json'})}")
    page.click("#consent-accept")
    page.wait_for_selector("body[data-sides]")
    yield opened
    context.close()
    assert errors == []


@pytest.fixture(scope="module")
def loaded(opened: Opened) -> Page:
    """The chat page with both sides, loaded once."""
    opened.loading = False
    for route in opened.weights:
        route.continue_()
    opened.page.wait_for_selector("body[data-near=ready]")
    return opened.page


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

    def by(**changes: Any) -> None:
        policy_file.write_text(json.dumps({**POLICY, **changes}))
        connect(chat)

    yield by
    by()


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


def test_while_near_loads_far_answers_and_what_is_private_waits_for_near(
    opened: Opened, far_server: RecordingProxy, request: pytest.FixtureRequest
) -> None:
    """The first one: the page of the others has its model later."""
    page = opened.page
    assert page.get_attribute("body", "data-near") == "loading"
    assert "still loading" in (page.text_content("#near-notice") or "")
    send(page, EASY)
    assert ended(page) == {"text": "27 + 58 = 85", "side": "far", "reason": "near_unavailable"}
    before = bytes(far_server.received)
    page.click("#private")
    assert "once its model is loaded" in (page.text_content("#privacy") or "")
    send(page, "my diary says quokka")
    page.wait_for_selector(".answer[data-state=streaming]")
    assert opened.weights
    request.getfixturevalue("loaded")
    assert (ended(page, 1)["side"], ended(page, 1)["reason"]) == ("near", "private")
    assert bytes(far_server.received) == before
    assert page.is_hidden("#near-notice")
    assert "swiftshader" in fact(page, 1, "Ran on")


def test_the_fitted_policy_divides_what_is_easy_and_what_is_hard_as_in_python(
    chat: Page, near_server: PageServer, far_server: RecordingProxy, route_by: Callable[..., None]
) -> None:
    """Real prompts, near's own signals of them, measured by WebGPU here and by numpy there, and the predictor fitted to both models.

    The prompts are none that the predictor was fitted on, of several tasks, and their gains are further from the threshold than engines
    differ: by at least ``MARGIN``, where rounding moves a gain by less than a hundredth. One of them is near's to answer by its words,
    and goes far because near's first tokens show that it is unsure: without real signals it would stay.
    """
    policy = Policy.read(DEMO_POLICY)
    assert policy.quality.predictor is not None
    # On a thread, for Playwright's loop runs on this one.
    with ThreadPoolExecutor(1) as thread:
        signals = thread.submit(asyncio.run, near_signals_in_python(near_server.bundle, [*STAY, *GO])).result()
    route_by(quality=json.loads(DEMO_POLICY.read_text())["quality"])
    # What follows the signals is not looked at.
    chat.fill("#max-tokens", str(SIGNAL_TOKENS))
    for prompt, told in signals.items():
        assert part_of(prompt) == "eval"
        expected = decide(policy, situation(prompt, told))
        gain = expected.scores.gain
        assert gain is not None
        assert abs(gain - policy.quality.threshold) > MARGIN, prompt
        assert expected.side == ("near" if prompt in STAY else "far"), prompt
        before = len(far_server.received)
        send(chat, prompt)
        shown = ended(chat)
        assert (shown["side"], shown["reason"]) == (expected.side, "quality"), prompt
        assert (len(far_server.received) > before) == (prompt in GO)
        percents = [int(percent) for percent in re.findall(r"(\d+)%", fact(chat, 0, "Expected right"))]
        assert expected.scores.near_right is not None
        assert expected.scores.far_right is not None
        # In whole percents.
        assert percents == pytest.approx(
            [100 * expected.scores.near_right, 100 * expected.scores.far_right], abs=1.5
        ), prompt
        assert chat.locator(".mark").count() == 0
        chat.click("#new-chat")
    chat.fill("#max-tokens", "")
    unsure = decide(policy, situation(UNSURE, None)).scores.gain
    assert unsure is not None
    assert unsure < policy.quality.threshold - MARGIN


def test_without_a_policy_of_its_own_the_demo_page_has_the_fitted_one_and_explains_its_threshold(chat: Page) -> None:
    given = chat.evaluate("() => location.search")
    without = re.sub(r"&?policy=[^&]*", "", given)
    chat.evaluate("(search) => history.replaceState(null, '', search)", without)
    connect(chat)
    points = round(100 * json.loads(DEMO_POLICY.read_text())["quality"]["threshold"])
    assert f"ahead by more than {points} points" in (chat.text_content("#far-state") or "")
    chat.evaluate("(search) => history.replaceState(null, '', search)", given)
    connect(chat)


def test_a_pinned_side_answers(chat: Page) -> None:
    pin(chat, "far")
    send(chat, EASY)
    assert ended(chat) == {"text": "27 + 58 = 85", "side": "far", "reason": "pinned"}
    pin(chat, "near")
    send(chat, HARD)
    assert (ended(chat, 1)["side"], ended(chat, 1)["reason"]) == ("near", "pinned")


def test_nothing_of_a_private_message_leaves_and_all_that_carry_it_are_private(
    chat: Page, far_server: RecordingProxy
) -> None:
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


def test_where_the_network_goes_in_mid_answer_near_goes_on_and_answers_what_follows(
    chat: Page, far_server: RecordingProxy
) -> None:
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


def test_the_lock_holds_under_a_policy_with_labels_of_its_own(
    chat: Page, route_by: Callable[..., None], far_server: RecordingProxy
) -> None:
    route_by(mode="prefer-far", quality={}, private={"labels": ["health"]})
    before = bytes(far_server.received)
    chat.click("#private")
    send(chat, EASY)
    assert ended(chat) == {"text": "27 + 58 = 85", "side": "near", "reason": "private"}
    assert bytes(far_server.received) == before
    assert "every message that is not private" in (chat.text_content("#far-state") or "")


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


@pytest.mark.parametrize(("broken", "bundle", "title", "why"), BROKEN)
def test_where_there_is_no_near_far_answers_alone_and_the_page_says_why(
    broken: str,
    bundle: str,
    title: str,
    why: str,
    browser: Browser,
    near_server: PageServer,
    far_server: RecordingProxy,
) -> None:
    with far_alone(browser, broken, near_server, far_server, bundle) as page:
        notice = page.text_content("#near-notice") or ""
        assert page.is_visible("#near-notice")
        for part in (title, why, "Private messages are not sent"):
            assert part in notice
        assert page.is_disabled("#pin input[value=near]")
        send(page, EASY)
        assert ended(page) == {"text": "27 + 58 = 85", "side": "far", "reason": "near_unavailable"}
        badge = page.text_content(".answer .sided") or ""
        assert badge.startswith("Far")
        assert badge.endswith("no model on this device")
        assert "everything" in (page.text_content("#far-state") or "")


@pytest.mark.parametrize("redirects", [False, True], ids=["foreign", "redirected"])
def test_nothing_is_fetched_or_sent_elsewhere_before_the_user_agrees(
    redirects: bool, browser: Browser, near_server: PageServer, far_server: RecordingProxy, policy_file: Path
) -> None:
    """A link names a server and a policy of another origin, or a policy that redirects there."""
    far_server.come_back()
    text = policy_file.read_text()
    elsewhere = f"http://127.0.0.1:{urlsplit(near_server.url).port}/policy.json"
    with page_of(browser, NO_WEBGPU) as page:
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.route(elsewhere, lambda route: route.fulfill(body=text, headers={"Access-Control-Allow-Origin": "*"}))
        page.route("**/moved.json", lambda route: route.fulfill(status=302, headers={"Location": elsewhere}))
        before = bytes(far_server.received)
        page.goto(
            f"{near_server.url}?{urlencode({'far': far_server.url, 'policy': './moved.json' if redirects else elsewhere})}"
        )
        dialog = page.locator("#consent")
        dialog.wait_for()
        assert far_server.url in (dialog.text_content() or "")
        assert ("may send every message there" in (dialog.text_content() or "")) is not redirects
        if not redirects:
            for shown in look(page):
                page.screenshot(path=SCREENSHOTS / f"consent-{shown}.png")
            assert page.evaluate(NAMELESS) == []
        page.click("#consent-refuse")
        page.wait_for_selector("body[data-state=error]")
        assert bytes(far_server.received) == before
        assert [url for url in requests if not url.startswith(near_server.origin)] == []
        page.reload()
        page.click("#consent-accept")
        if redirects:
            page.wait_for_selector("#far-problem", state="visible")
            assert "answers with a redirect, which is not followed" in (page.text_content("#far-problem") or "")
            assert elsewhere not in requests
            return
        page.wait_for_selector("body[data-near=failed][data-state=ready]")
        assert elsewhere in requests
        # The lock holds by that policy too.
        page.click("#private")
        send(page, "my diary says quokka")
        assert (page.text_content("#status") or "").startswith("Not sent.")
        # Who has agreed is not asked again.
        page.reload()
        page.wait_for_selector("body[data-near=failed][data-state=ready]")
        assert dialog.count() == 0
    assert b"quokka" not in far_server.received


def test_where_there_is_no_near_a_private_message_is_refused_before_it_is_sent(
    browser: Browser, near_server: PageServer, far_server: RecordingProxy
) -> None:
    with far_alone(browser, NO_WEBGPU, near_server, far_server) as page:
        before = bytes(far_server.received)
        page.click("#private")
        assert "would never be answered" in (page.text_content("#privacy") or "")
        send(page, "my diary says quokka")
        assert (page.text_content("#status") or "").startswith("Not sent.")
        assert page.input_value("#prompt") == "my diary says quokka"
        assert page.locator(".answer").count() == 0
        assert bytes(far_server.received) == before
        for shown in look(page):
            page.screenshot(path=SCREENSHOTS / f"far-alone-{shown}.png")
        assert page.evaluate(NAMELESS) == []
        page.click("#private")
        send(page, EASY)
        assert ended(page)["side"] == "far"
    assert b"quokka" not in far_server.received


def test_without_near_and_far_the_page_explains_and_a_server_that_is_named_then_answers(
    browser: Browser, near_server: PageServer, far_server: RecordingProxy
) -> None:
    far_server.die()
    with page_of(browser, NO_WEBGPU) as page:
        page.goto(f"{near_server.url}?{urlencode({'far': far_server.url})}")
        page.click("#consent-accept")
        page.wait_for_selector("body[data-state=error] #far-problem", state="visible")
        page.goto(near_server.url)
        page.wait_for_selector("body[data-state=error]")
        assert "no WebGPU" in (page.text_content("#failure-message .what") or "")
        assert not page.is_visible("#composer")
        page.evaluate("() => { window.sameDocument = true; }")
        page.fill("#far-url", far_server.url)
        page.press("#far-url", "Enter")
        page.wait_for_selector("#failure #far-problem", state="visible")
        assert "does not answer" in (page.text_content("#far-problem") or "")
        assert f"--cors-origin {near_server.origin}" in (page.text_content("#far-problem") or "")
        for shown in look(page):
            page.screenshot(path=SCREENSHOTS / f"no-side-{shown}.png", full_page=True)
        far_server.come_back()
        page.click("#far-connect")
        page.wait_for_selector("body[data-state=ready]")
        assert page.is_hidden("#failure")
        send(page, EASY)
        assert ended(page) == {"text": "27 + 58 = 85", "side": "far", "reason": "near_unavailable"}
        assert page.evaluate("() => window.sameDocument")
        assert page.locator("#panel #far-form").count() == 1


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
