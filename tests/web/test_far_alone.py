"""The server's part of near and far, exhaustively: the chat page whose own model does not run, answers that outlive
their page, and decisions that near leaves to far. test_near_and_far.py has the usual path of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from chat_pages import send
from page_looks import NAMELESS, require_legible
from playwright.sync_api import Browser, Page
from recording_proxy import RecordingProxy
from routed_prompts import EASY
from two_sides import (
    FAILURES,
    NO_WEBGPU,
    Failure,
    ended,
    far_alone,
    generated_tokens,
    on_both_sides,
    open_journal_page,
    page_of,
    serve_far,
)
from waiting import wait_until

from nearfar.compiler.browser.page_server import PageServer
from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.router.hybrid import Hybrid
from nearfar.server_fallback.schema.routed import RoutedDecideResponse


@pytest.fixture(scope="module")
def near_server(light_demo: Path, chromium: str) -> Iterator[PageServer]:  # noqa: ARG001
    with PageServer(light_demo) as server:
        yield server


@pytest.fixture(scope="module")
def far_server(near_server: PageServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordingProxy]:
    with serve_far(near_server, tmp_path_factory.mktemp("far")) as proxy:
        yield proxy


# The TypeScript tests check the reasons of each failure; test_near_and_far.py shows the page without WebGPU.
@pytest.mark.exhaustive
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_without_near_far_answers_alone_and_the_page_explains_why(
    failure: Failure, browser: Browser, near_server: PageServer, far_server: RecordingProxy
) -> None:
    with far_alone(browser, failure.script, near_server, far_server, failure.bundle) as page:
        notice = page.text_content("#near-notice") or ""
        assert page.is_visible("#near-notice")
        for part in (*failure.words, "Private messages are not sent"):
            assert part in notice
        assert page.is_disabled("#pin input[value=near]")
        send(page, EASY)
        assert ended(page) == {"text": "27 + 58 = 85", "side": "far", "reason": "near_unavailable"}
        badge = page.text_content(".answer .sided") or ""
        assert badge.startswith("Far")
        assert badge.endswith("no model was ready on this device")
        for part in ("every message that is not private", "Private messages are not sent"):
            assert part in (page.text_content("#far-state") or "")


# test_near_and_far.py loads the chat page again in mid-answer; web/test/journal has both with a fake server.
@pytest.mark.exhaustive
@pytest.mark.parametrize("end", [Page.close, Page.reload], ids=["closed", "loaded again"])
def test_far_goes_on_without_its_page_and_the_next_one_gets_its_one_answer(
    end: Callable[[Page], object], browser: Browser, near_server: PageServer, far_server: RecordingProxy
) -> None:
    far_server.come_back()
    with page_of(browser, NO_WEBGPU) as page:
        opened = partial(open_journal_page, page.context, near_server, far_server)
        counts = [generated_tokens(far_server)]
        whole = opened().evaluate("begin('whole')")
        counts.append(generated_tokens(far_server))
        far_server.hold(8)
        first = opened()
        first.evaluate("() => void begin('story')")
        first.wait_for_function("text.length > 8")
        end(first)
        # The server ends the answer before anyone asks for its rest.
        wait_until(lambda: generated_tokens(far_server) - counts[1] == counts[1] - counts[0])
        far_server.release()
        following = opened()
        wait_until(lambda: not following.evaluate("running('story')"))
        assert following.evaluate("resume('story')") == whole
        assert generated_tokens(far_server) - counts[1] == counts[1] - counts[0]


# test_near_and_far.py refuses one under a policy of another origin.
@pytest.mark.exhaustive
def test_without_near_a_private_message_is_refused_before_it_is_sent(
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
        require_legible(page, "far-alone")
        assert page.evaluate(NAMELESS) == []
        page.click("#private")
        send(page, EASY)
        assert ended(page)["side"] == "far"
    assert b"quokka" not in far_server.received


@pytest.mark.exhaustive
def test_a_policy_that_redirects_elsewhere_is_not_followed(
    browser: Browser, near_server: PageServer, far_server: RecordingProxy
) -> None:
    far_server.come_back()
    elsewhere = f"http://127.0.0.1:{urlsplit(near_server.url).port}/policy.json"
    with page_of(browser, NO_WEBGPU) as page:
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.route("**/moved.json", lambda route: route.fulfill(status=302, headers={"Location": elsewhere}))
        page.goto(f"{near_server.url}?{urlencode({'far': far_server.url, 'policy': './moved.json'})}")
        assert "may send every message there" not in (page.locator("#consent").text_content() or "")
        page.click("#consent-accept")
        page.wait_for_selector("#far-problem", state="visible")
        assert "answers with a redirect, which is not followed" in (page.text_content("#far-problem") or "")
        assert elsewhere not in requests


# test_hybrid_decisions.py and web/test/router/hybrid_decisions.test.ts have all of this with fakes.
@pytest.mark.exhaustive
def test_far_decides_what_near_is_unsure_of_and_a_calibration_stays_with_its_model(
    far_server: RecordingProxy, light_demo: Path
) -> None:
    questions = {
        "room": {"type": "choice", "question": "Which room?", "choices": ["kitchen", "bedroom", "garage"]},
        "lit": {"type": "yes_no", "question": "Is it about lights?"},
    }
    certain = {"temperature": 1.0, "bias": {"Yes": 0.0, "No": 40.0}}

    async def work(hybrid: Hybrid) -> None:
        async def ask(**options: Any) -> RoutedDecideResponse:
            return await hybrid.decide("turn on the kitchen light", questions, **options)

        near, far = await ask(pin="near"), await ask(pin="far")
        assert [each.calibration_model for each in (near, far)] == ["nearfar-demo", "nearfar-demo-far"]
        assert near.decisions["room"].confidence < 0.9 < near.decisions["lit"].confidence
        shared = await ask(abstain_below=0.9)
        assert shared.sides == {"room": "far", "lit": "near"}
        assert shared.decisions["room"].answer == far.decisions["room"].answer == "kitchen"
        sent = bytes(far_server.received)
        kept = await ask(abstain_below=0.9, labels=["private"])
        assert (kept.decisions["room"].answer, bytes(far_server.received)) == (None, sent)
        for side, model in (("near", "nearfar-demo"), ("far", "nearfar-demo-far")):
            calibration = {"version": 1, "model": model, "questions": {"lit": certain}}
            answers = [
                (await ask(pin=each, calibration=calibration)).decisions["lit"].answer for each in ("near", "far")
            ]
            assert answers == [side != "near", side != "far"]
        with pytest.raises(
            RequestError, match="was fitted to demo, and this model is nearfar-demo or nearfar-demo-far"
        ):
            await ask(calibration={"version": 1, "model": "demo", "questions": {}})

    far_server.come_back()
    on_both_sides(light_demo, far_server, {"escalation": {"then": "continue"}}, work)
