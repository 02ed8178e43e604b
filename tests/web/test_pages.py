"""The chat page and the bench page in headless Chromium: mouse and keyboard, desk and phone, light and dark.

`make test-all` keeps pictures in build/screenshots.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from chat_pages import ask, hold_next, markdown, new_chat, open_page, page_server, send
from page_looks import DESK, NAMELESS, PHONE, fact, require_legible, resize
from page_model import page_bundle
from playwright.sync_api import Browser, Page

from nearfar.compiler.browser.page_server import PageServer

# Two of the bench page's lengths of prompts fit.
BENCH_CONTEXT = 96


@pytest.fixture(scope="module")
def server(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:  # noqa: ARG001
    with page_server(tmp_path_factory.mktemp("pages")) as server:
        yield server


@pytest.fixture(scope="module")
def loaded(browser: Browser, server: PageServer) -> Iterator[Page]:
    """The chat page with its model, loaded once; its console must stay silent."""
    errors: list[str] = []
    page = open_page(browser, errors)
    page.goto(server.url)
    page.wait_for_selector("body[data-state=ready]")
    yield page
    page.context.close()
    assert errors == []


@pytest.fixture
def chat(loaded: Page) -> Page:
    """The chat page without a conversation, on a desk, with answers of at most six tokens."""
    resize(loaded, DESK)
    if loaded.is_visible("#new-chat"):
        new_chat(loaded)
    loaded.fill("#max-tokens", "6")
    loaded.fill("#seed", "")
    return loaded


@pytest.fixture(scope="module")
def measured(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The bench page with its result for a short context; its console must stay silent."""
    errors: list[str] = []
    page = open_page(browser, errors)
    folder = tmp_path_factory.mktemp("bench")
    with page_server(folder, self_test=True, context=BENCH_CONTEXT) as server:
        page.goto(f"{server.url}bench.html")
        page.click("#run:enabled")
        page.wait_for_selector("body[data-state=done], body[data-state=error]")
        assert page.get_attribute("body", "data-state") == "done", page.text_content("#failure-message")
        yield page
        page.context.close()
    assert errors == []


def test_the_second_turn_reads_the_first_as_well(chat: Page) -> None:
    from nearfar.compiler.bundle.folder import open_bundle
    from nearfar.compiler.runtime.text.tokenizer import Tokenizer

    ask(chat, "hello")
    ask(chat, "and again")
    assert chat.locator(".question").count() == 2
    assert fact(chat, 0, "Answer") == "6 tokens"
    turns = [("user", "hello"), ("assistant", markdown(chat)), ("user", "and again")]
    prompt = Tokenizer(open_bundle(page_bundle()).tokenizer_files()).encode_chat(
        [{"role": role, "content": text} for role, text in turns]
    )
    assert fact(chat, 1, "Prompt") == f"{len(prompt)} tokens"
    assert "swiftshader" in fact(chat, 1, "Ran on")
    assert "first token" in (chat.text_content(".answer >> nth=1 >> .timings") or "")


# test_near_and_far.py regenerates an answer, test_conversations_page.py continues and edits some.
@pytest.mark.exhaustive
def test_the_last_answer_can_be_regenerated(chat: Page) -> None:
    ask(chat, "hello")
    ask(chat, "and again")
    assert not chat.is_visible(".answer >> nth=0 >> .regenerate")
    before = markdown(chat, 1)
    chat.fill("#max-tokens", "3")
    chat.click(".answer >> nth=1 >> .regenerate")
    chat.wait_for_selector(".answer[data-state=done] >> nth=1")
    assert fact(chat, 1, "Answer") == "3 tokens"
    after = markdown(chat, 1)
    assert before.startswith(after.rstrip("�"))
    assert chat.locator(".answer").count() == 2


def test_a_complete_answer_is_copied_and_announced_to_screen_readers(chat: Page) -> None:
    ask(chat, "hello")
    answer = markdown(chat)
    assert (chat.text_content("#status") or "") == answer
    chat.click(".answer .copy")
    chat.wait_for_selector("#status:text-is('Copied')", state="attached")
    assert chat.evaluate("() => navigator.clipboard.readText()") == answer


def test_escape_stops_an_answer_and_the_next_one_is_complete(chat: Page) -> None:
    chat.fill("#max-tokens", "40")
    hold_next(chat, 4)
    send(chat, "hello")
    chat.wait_for_selector(".answer[data-state=streaming][aria-busy=true]")
    assert chat.get_attribute("#send", "aria-label") == "Stop"
    chat.keyboard.press("Escape")
    chat.wait_for_selector(".answer[data-state=done] .timings:text-is('Stopped')")
    assert chat.get_attribute("#send", "aria-label") == "Send"
    chat.fill("#max-tokens", "6")
    ask(chat, "and again")
    assert fact(chat, 1, "Answer") == "6 tokens"


def test_a_new_chat_is_empty_and_ready_to_type_in(chat: Page) -> None:
    ask(chat, "hello")
    new_chat(chat)
    chat.wait_for_selector("#welcome", state="visible")
    assert chat.locator(".answer").count() == 0
    assert chat.evaluate("() => document.activeElement.id") == "prompt"
    assert chat.is_disabled("#send")


def test_a_seed_gives_the_same_answer_again_and_settings_are_checked(chat: Page) -> None:
    chat.fill("#temperature", "1")
    chat.fill("#seed", "7")
    ask(chat, "hello")
    drawn = markdown(chat)
    new_chat(chat)
    ask(chat, "hello")
    assert markdown(chat) == drawn
    assert fact(chat, 0, "Chosen") == "temperature 1, seed 7"
    chat.fill("#seed", "-1")
    chat.fill("#prompt", "not sent")
    chat.press("#prompt", "Enter")
    assert chat.locator(".answer").count() == 1
    assert chat.evaluate("() => document.activeElement.id") == "seed"
    chat.fill("#temperature", "0")


def test_a_question_that_does_not_fit_shows_what_to_do(chat: Page) -> None:
    ask(chat, "long " * 80)
    assert "the model reads 256 at once" in (chat.text_content(".answer .problem .what") or "")
    assert "Shorten the message" in (chat.text_content(".answer .problem .fix") or "")
    assert chat.is_visible(".answer button:text-is('Try again')")
    ask(chat, "short")
    assert fact(chat, 1, "Answer") == "6 tokens"
    assert not chat.is_visible(".answer button:text-is('Try again')")


def test_a_missing_bundle_shows_what_to_do(browser: Browser, server: PageServer) -> None:
    page = open_page(browser, [])
    for path in ("bench.html", ""):
        page.goto(f"{server.url}{path}?bundle=./nowhere/")
        page.wait_for_selector("body[data-state=error]")
        assert "nowhere/manifest.json answers 404" in (page.text_content("#failure-message .what") or "")
        assert page.text_content("#failure-message .fix") == "check that the bundle is there"
    page.fill("#other-bundle", "./elsewhere/")
    page.press("#other-bundle", "Enter")
    page.wait_for_url("**/?bundle=.%2Felsewhere%2F")
    page.context.close()


def test_the_model_card_describes_the_model_on_this_device(chat: Page) -> None:
    manifest = json.loads((page_bundle() / "manifest.json").read_text())
    card = chat.text_content("#model-card") or ""
    info: dict[str, Any] = chat.evaluate("() => window.nearfar.engine.info")
    for part in (
        info["model"],
        info["quantization"],
        info["adapter"],
        info["activation"],
        f"{info['dispatchesPerToken']} dispatches",
    ):
        assert part in card
    assert f"{manifest['context']} tokens" in card
    assert "Keys and values" in card


def test_on_a_phone_the_panel_opens_and_gives_the_focus_back(chat: Page) -> None:
    resize(chat, PHONE)
    assert not chat.is_visible("#temperature")
    chat.focus("#open-panel")
    chat.keyboard.press("Enter")
    chat.wait_for_selector("#temperature", state="visible")
    chat.keyboard.press("Escape")
    chat.wait_for_selector("#temperature", state="hidden")
    assert chat.evaluate("() => document.activeElement.id") == "open-panel"


def test_the_bench_page_exports_its_result(measured: Page) -> None:
    result = json.loads(measured.text_content("#json") or "")
    assert result["format"] == "nearfar-bench-1"
    assert result["agreement"] == {"reference": "self_test", "checked": 24, "agreed": 24}
    assert result["device"]["runs_on_cpu"]
    assert [row["prompt_tokens"] for row in result["prefill"]] == [16, 64]
    # The longer prompt is cut, because the context must hold 32 new tokens.
    assert [row["prompt_tokens"] for row in result["decode"]] == [16, BENCH_CONTEXT - 32]
    assert all(row["tokens_per_second"] > 0 for row in (*result["prefill"], *result["decode"]))
    sizes = json.loads((page_bundle() / "manifest.json").read_text())
    assert result["bundle"]["bytes"] == sum(
        entry["size"] for entry in (*sizes["shards"], *sizes["files"]) if entry["file"] != "probe.json"
    )
    assert (
        result["memory_bytes"]["buffers"]
        >= result["memory_bytes"]["weights"] + result["memory_bytes"]["keys_and_values"]
    )
    for times in result["load"].values():
        assert 0 < times["manifest_ms"] < times["total_ms"]
        assert times["manifest_ms"] + max(times["download_ms"], times["compile_ms"]) <= times["total_ms"]
    measured.click("button:text-is('Copy JSON')")
    measured.wait_for_selector("#status:text-is('Copied')", state="attached")
    assert json.loads(measured.evaluate("() => navigator.clipboard.readText()")) == result
    with measured.expect_download() as download:
        measured.click("button:text-is('Download')")
    assert json.loads(download.value.path().read_text()) == result


# test_browser.py counts the calls of a token, and web/test/page/count_calls.test.ts has how the page does.
@pytest.mark.exhaustive
def test_the_bench_page_counts_the_calls_of_a_token(measured: Page) -> None:
    counts = json.loads(measured.text_content("#json") or "")["per_token"]
    assert list(counts) == [
        "dispatches",
        "submits",
        "passes",
        "bind_groups",
        "buffers",
        "write_buffers",
        "bytes_read_back",
    ]
    # Embedding, attention, feed-forward and head. What the tuner found faster here decides whether some take two.
    assert counts["dispatches"] > 3
    assert {name: count for name, count in counts.items() if name != "dispatches"} == {
        "submits": 1,
        "passes": 1,
        "bind_groups": 0,
        "buffers": 0,
        "write_buffers": 1,
        "bytes_read_back": 4,
    }
    assert measured.evaluate("() => window.nearfarBench.countsPerToken()") == counts
    assert measured.locator(".plot polyline").count() == 2
    assert "24/24" in (measured.text_content(".tiles") or "")


@pytest.mark.parametrize("name", ["chat", "bench"])
def test_both_pages_read_well_in_light_and_dark_on_a_desk_and_a_phone(
    name: str, request: pytest.FixtureRequest
) -> None:
    page: Page = request.getfixturevalue({"chat": "chat", "bench": "measured"}[name])
    if name == "chat":
        ask(page, "hello")
        page.click(".ran summary")
    require_legible(page, name, full_page=name == "bench")
    assert page.evaluate(NAMELESS) == []
