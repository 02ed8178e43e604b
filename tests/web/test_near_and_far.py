"""Near and far as one, in headless Chromium.

The page's engine runs the demo model on WebGPU, `nearfar serve` a model on the CPU.

Answers come from the right side, change sides if one fails, and stay on the device if they are private. Without near,
far answers. The tests are in one file because they share a loaded page
and its two servers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from chat_pages import new_chat, send
from demo_model.traffic import part_of
from page_looks import NAMELESS, fact, require_legible
from playwright.sync_api import Browser, Page
from recording_proxy import RecordingProxy
from routed_prompts import DEMO_POLICY, EASY, GO, HARD, MARGIN, POLICY, STAY, UNSURE, reading_first_tokens
from two_sides import (
    FAR_MODEL,
    KEEP_DEVICES,
    LOSE_DEVICE,
    NO_WEBGPU,
    STORY,
    Opened,
    assert_continued,
    begin_a_story_far,
    connect,
    ended,
    far_alone,
    near_signals_in_python,
    page_of,
    pin,
    serve_far,
    situation,
)

from nearfar.compiler.browser.page_server import PageServer
from nearfar.server_fallback.router.answer.signals import SIGNAL_TOKENS
from nearfar.server_fallback.router.decision.decide import decide
from nearfar.server_fallback.router.decision.policy import Policy


@pytest.fixture(scope="module")
def policy_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy file that the page reads at every connection."""
    path = tmp_path_factory.mktemp("policy") / "policy.json"
    path.write_text(json.dumps(POLICY))
    return path


@pytest.fixture(scope="module")
def near_server(policy_file: Path, light_demo: Path, chromium: str) -> Iterator[PageServer]:  # noqa: ARG001
    """The page's server."""
    with PageServer(light_demo, policy=policy_file) as server:
        yield server


@pytest.fixture(scope="module")
def far_server(near_server: PageServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordingProxy]:
    """`nearfar serve` behind a proxy."""
    with serve_far(near_server, tmp_path_factory.mktemp("far")) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def opened(browser: Browser, near_server: PageServer, far_server: RecordingProxy) -> Iterator[Opened]:
    with page_of(browser, f"({KEEP_DEVICES})()") as page:
        opened = Opened(page, [])
        opened.open(f"{near_server.url}?{urlencode({'far': far_server.url, 'policy': './policy.json'})}")
        yield opened


@pytest.fixture(scope="module")
def loaded(opened: Opened) -> Page:
    """The chat page with both sides, loaded once."""
    opened.load()
    return opened.page


@pytest.fixture
def chat(loaded: Page, far_server: RecordingProxy) -> Page:
    """The page without a conversation. The far side answers, the network is on, and no side is pinned."""
    far_server.come_back()
    if loaded.is_visible("#new-chat"):
        new_chat(loaded)
    loaded.check("#network")
    pin(loaded, "auto")
    return loaded


@pytest.fixture
def route_by(chat: Page, policy_file: Path) -> Iterator[Callable[..., None]]:
    """route_by(key=value, ...) connects the page with these changes of the policy, for the rest of the test."""

    def by(**changes: Any) -> None:
        policy_file.write_text(json.dumps({**POLICY, **changes}))
        connect(chat)

    yield by
    by()


def test_while_near_loads_far_answers_and_private_messages_wait_for_near(
    opened: Opened, far_server: RecordingProxy, request: pytest.FixtureRequest
) -> None:
    """This test comes first, because the model of the page is loaded for the others."""
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


# The traces in tests/conformance route by words alone.
@pytest.mark.parametrize(
    "prompts", [(STAY[0], UNSURE), pytest.param((*STAY, *GO), marks=pytest.mark.exhaustive)], ids=["usual", "all"]
)
def test_the_fitted_policy_routes_easy_and_hard_prompts_as_in_python(
    prompts: Sequence[str],
    chat: Page,
    near_server: PageServer,
    far_server: RecordingProxy,
    route_by: Callable[..., None],
) -> None:
    """Route prompts on which the predictor was not fitted, with one of near's own signals, from WebGPU here and from
    numpy in Python.

    Each gain is at least ``MARGIN`` from the threshold, while rounding in the engines moves a gain by less than a
    hundredth. By its words alone, near would answer UNSURE. It is sent to far because near's first tokens show low
    confidence, so the test fails without real signals.
    """
    quality = reading_first_tokens(json.loads(DEMO_POLICY.read_text())["quality"])
    policy = Policy.read({"version": 1, "mode": "auto", "quality": quality})
    assert policy.quality.predictor is not None
    signals = near_signals_in_python(near_server.bundle, prompts)
    # On a busy machine, near's first tokens take longer than the default limit allows.
    route_by(quality=quality, timeouts={"near_first_token_ms": 120_000})
    # The text after the signals does not matter.
    chat.fill("#max-tokens", str(SIGNAL_TOKENS))
    for prompt, near_signals in signals.items():
        assert part_of(prompt) == "eval"
        expected = decide(policy, situation(prompt, near_signals))
        gain = expected.scores["gain"]
        assert gain is not None
        assert abs(gain - policy.quality.threshold) > MARGIN, prompt
        assert expected.side == ("near" if prompt in STAY else "far"), prompt
        before = len(far_server.received)
        send(chat, prompt)
        shown = ended(chat)
        assert (shown["side"], shown["reason"]) == (expected.side, "quality"), prompt
        assert (len(far_server.received) > before) == (prompt in GO)
        percents = [int(percent) for percent in re.findall(r"(\d+)%", fact(chat, 0, "Expected to be right"))]
        assert expected.scores["near_right"] is not None
        assert expected.scores["far_right"] is not None
        # The page rounds to whole percents.
        assert percents == pytest.approx(
            [100 * expected.scores["near_right"], 100 * expected.scores["far_right"]], abs=1.5
        ), prompt
        assert chat.locator(".mark").count() == 0
        new_chat(chat)
    chat.fill("#max-tokens", "")
    without_signals = decide(policy, situation(UNSURE, None)).scores["gain"] or 0.0
    assert 0.0 != without_signals < policy.quality.threshold - MARGIN


def test_without_a_policy_file_the_demo_page_uses_the_fitted_policy_and_explains_its_threshold(chat: Page) -> None:
    given = chat.evaluate("() => location.search")
    without = re.sub(r"&?policy=[^&]*", "", given)
    chat.evaluate("(search) => history.replaceState(null, '', search)", without)
    connect(chat)
    points = round(100 * json.loads(DEMO_POLICY.read_text())["quality"]["threshold"])
    assert f"ahead by more than {points} points" in (chat.text_content("#far-state") or "")
    chat.evaluate("(search) => history.replaceState(null, '', search)", given)
    connect(chat)


@pytest.mark.exhaustive
def test_a_pinned_side_answers(chat: Page) -> None:
    pin(chat, "far")
    send(chat, EASY)
    assert ended(chat) == {"text": "27 + 58 = 85", "side": "far", "reason": "pinned"}
    pin(chat, "near")
    send(chat, HARD)
    assert (ended(chat, 1)["side"], ended(chat, 1)["reason"]) == ("near", "pinned")


def test_no_byte_of_a_private_message_is_sent_and_later_messages_are_private_too(
    chat: Page, far_server: RecordingProxy
) -> None:
    requests: list[str] = []
    chat.on("request", lambda request: requests.append(request.url))
    before = bytes(far_server.received)
    pin(chat, "far")
    chat.click("#private")
    assert chat.is_disabled("#pin input[value=far]")
    assert chat.is_checked("#pin input[value=auto]")
    send(chat, f"my diary says quokka: {HARD}")
    assert (ended(chat)["side"], ended(chat)["reason"]) == ("near", "private")
    assert chat.locator(".question .icon").count() == 1
    assert chat.is_disabled("#private")
    assert "every message includes the private one" in (chat.text_content("#privacy") or "")
    send(chat, HARD)
    assert (ended(chat, 1)["side"], ended(chat, 1)["reason"]) == ("near", "private")
    assert bytes(far_server.received) == before
    assert requests == []
    new_chat(chat)
    assert chat.get_attribute("#private", "aria-pressed") == "false"
    send(chat, HARD)
    assert ended(chat)["side"] == "far"
    assert b"quokka" not in far_server.received


def test_the_page_asks_before_masked_texts_leave_and_shows_them_word_for_word(
    chat: Page, far_server: RecordingProxy, route_by: Callable[..., None]
) -> None:
    masks = {"patterns": [{"kind": "EMAIL", "pattern": r"\b[a-z]+@[a-z]+\.org\b"}], "then": "ask", "strict": True}
    route_by(mode="prefer-far", quality={}, private={"masks": masks})
    before = len(far_server.received)
    send(chat, "I am anna@lee.org.\nWhat is 27 + 58?")
    chat.wait_for_selector("#leaving")
    assert [each.text_content() for each in chat.locator("#leaving q").all()][:2] == [
        "user",
        "I am [EMAIL_1].\nWhat is 27 + 58?",
    ]
    assert "Send this to 127.0.0.1" in (chat.text_content("#leaving-title") or "")
    require_legible(chat, "leaving")
    assert chat.evaluate(NAMELESS) == []
    assert len(far_server.received) == before
    chat.click("#leaving-refuse")
    shown = ended(chat)
    assert (shown["side"], shown["reason"], len(far_server.received)) == ("near", "private", before)
    chat.click(".regenerate")
    chat.click("#leaving-accept")
    shown = ended(chat)
    assert shown["side"] == "far"
    sent = bytes(far_server.received[before:])
    assert b"anna" not in sent
    body = json.loads(sent[sent.index(b"\r\n\r\n") + 4 :])
    chat.click(".answer summary")
    left = fact(chat, 0, "Left this device")
    assert body["messages"] == [{"role": "user", "content": "I am [EMAIL_1].\nWhat is 27 + 58?"}]
    assert str(body["temperature"]) in left
    assert body.keys() - {"model", "stream", "stream_options", "messages"} <= {
        (each.text_content() or "") for each in chat.locator(".answer .leaving .place").all()
    }
    require_legible(chat, "left")


@pytest.mark.exhaustive
def test_if_the_network_is_lost_during_an_answer_near_continues_and_answers_later_messages(
    chat: Page, far_server: RecordingProxy
) -> None:
    before = begin_a_story_far(chat, far_server)
    chat.click("#network")
    assert_continued(chat, before, "near", "far_failed")
    far_server.release()
    sent = len(far_server.received)
    send(chat, HARD)
    assert (ended(chat, 1)["side"], ended(chat, 1)["reason"]) == ("near", "offline")
    assert len(far_server.received) == sent
    pin(chat, "far")
    send(chat, HARD)
    assert "problem" in ended(chat, 2)


@pytest.mark.exhaustive
def test_if_near_is_late_far_is_requested_too_and_the_first_one_wins(chat: Page, route_by: Callable[..., None]) -> None:
    route_by(timeouts={"hedge_after_ms": 300})
    chat.evaluate("() => window.nearfar.engine.pause()")
    send(chat, EASY)
    answer = ended(chat)
    chat.evaluate("() => window.nearfar.engine.resume()")
    assert answer == {"text": "27 + 58 = 85", "side": "far", "reason": "near_late"}
    assert chat.locator(".mark").count() == 0


@pytest.mark.exhaustive
def test_if_near_is_unsure_far_continues_its_text(chat: Page, route_by: Callable[..., None]) -> None:
    # No answer reaches this probability.
    route_by(escalation={"then": "continue", "window_tokens": 2, "min_mean_logprob": 0.0})
    send(chat, EASY)
    assert ended(chat) == {"text": "27 + 58 = 85", "side": "far", "reason": "escalated_logprob"}
    assert chat.locator(".answer .mark").count() == 1
    assert "the near model became unsure" in (chat.get_attribute(".answer .mark", "aria-label") or "")


@pytest.mark.exhaustive
def test_the_lock_works_under_a_policy_with_its_own_labels(
    chat: Page, route_by: Callable[..., None], far_server: RecordingProxy
) -> None:
    route_by(mode="prefer-far", quality={}, private={"labels": ["health"]})
    before = bytes(far_server.received)
    chat.click("#private")
    send(chat, EASY)
    assert ended(chat) == {"text": "27 + 58 = 85", "side": "near", "reason": "private"}
    assert bytes(far_server.received) == before
    assert "every message that is not private" in (chat.text_content("#far-state") or "")


# web/test/router/far.test.ts and web/test/page/network.test.ts have such servers, the next tests a form with a
# problem.
@pytest.mark.exhaustive
def test_a_server_of_another_kind_is_an_error_and_the_earlier_connection_stays(
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


# web/test/router/hybrid_failures.test.ts has servers that die, the last test here an answer that the other side
# continues, and the tests of dialogs the looks of both sides.
@pytest.mark.exhaustive
def test_if_the_server_dies_near_continues_and_both_sides_read_well_in_light_and_dark_on_a_desk_and_a_phone(
    chat: Page, far_server: RecordingProxy
) -> None:
    send(chat, EASY)
    ended(chat)
    send(chat, HARD)
    ended(chat, 1)
    new_chat(chat)
    before = begin_a_story_far(chat, far_server)
    far_server.die()
    assert_continued(chat, before, "near", "far_failed")
    far_server.come_back()
    chat.click("#private")
    send(chat, EASY)
    ended(chat, 1)
    require_legible(chat, "hybrid")
    assert chat.evaluate(NAMELESS) == []


# web/test/journal/hybrid.test.ts has far answers that go on, and test_conversations_page.py a page that is loaded
# again.
@pytest.mark.exhaustive
def test_the_chat_page_shows_the_rest_of_a_far_answer_when_it_is_loaded_again(
    browser: Browser, near_server: PageServer, far_server: RecordingProxy
) -> None:
    with far_alone(browser, NO_WEBGPU, near_server, far_server) as page:
        begun = begin_a_story_far(page, far_server)
        before = len(far_server.received)
        page.reload()
        far_server.release()
        page.wait_for_function("() => document.querySelector('.answer .text')?.dataset.markdown?.endsWith('The end.')")
        answer = ended(page)
        assert answer["text"].startswith(begun)
        assert answer["side"] == "far"
        received = bytes(far_server.received[before:]).lower()
        # It was received again, and not asked for again after its text.
        assert received.count(b"post /v1/chat/completions") == received.count(b"last-event-id: 0") == 1


def test_nothing_is_fetched_or_sent_elsewhere_before_the_user_agrees(
    browser: Browser, near_server: PageServer, far_server: RecordingProxy, policy_file: Path
) -> None:
    """A link names a server and a policy of another origin."""
    far_server.come_back()
    text = policy_file.read_text()
    elsewhere = f"http://127.0.0.1:{urlsplit(near_server.url).port}/policy.json"
    with page_of(browser, NO_WEBGPU) as page:
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.route(elsewhere, lambda route: route.fulfill(body=text, headers={"Access-Control-Allow-Origin": "*"}))
        before = bytes(far_server.received)
        page.goto(f"{near_server.url}?{urlencode({'far': far_server.url, 'policy': elsewhere})}")
        dialog = page.locator("#consent")
        dialog.wait_for()
        assert far_server.url in (dialog.text_content() or "")
        assert "may send every message there" in (dialog.text_content() or "")
        require_legible(page, "consent")
        assert page.evaluate(NAMELESS) == []
        page.click("#consent-refuse")
        page.wait_for_selector("body[data-state=error]")
        assert bytes(far_server.received) == before
        assert [url for url in requests if not url.startswith(near_server.origin)] == []
        page.reload()
        page.click("#consent-accept")
        page.wait_for_selector("body[data-near=failed][data-state=ready]")
        assert elsewhere in requests
        # The lock also works under that policy.
        page.click("#private")
        send(page, "my diary says quokka")
        assert (page.text_content("#status") or "").startswith("Not sent.")
        # The page does not request consent again.
        page.reload()
        page.wait_for_selector("body[data-near=failed][data-state=ready]")
        assert dialog.count() == 0
    assert b"quokka" not in far_server.received


def test_without_either_side_the_page_explains_and_a_server_that_is_connected_then_answers(
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
        require_legible(page, "no-side", full_page=True)
        far_server.come_back()
        page.click("#far-connect")
        page.wait_for_selector("body[data-state=ready]")
        assert page.is_hidden("#failure")
        send(page, EASY)
        assert ended(page) == {"text": "27 + 58 = 85", "side": "far", "reason": "near_unavailable"}
        assert page.evaluate("() => window.sameDocument")
        assert page.locator("#panel #far-form").count() == 1
        assert "Private messages are not sent" in (page.text_content("#near-notice") or "")
        assert page.is_disabled("#pin input[value=near]")


def test_if_the_device_is_lost_during_an_answer_far_continues(chat: Page) -> None:
    """This test comes last, because the page loses its device."""
    chat.evaluate(LOSE_DEVICE)
    send(chat, STORY)
    assert_continued(chat, "Once upon a time", "far", "near_failed")
