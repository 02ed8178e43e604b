"""The conversations of the chat page: stored, found, renamed, exported, edited, interrupted, and open in two tabs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_pages import (
    ask,
    hold_next,
    markdown,
    new_chat,
    page_server,
    requests,
    script,
    scripted_page,
    send,
    start_over,
    wait_until_ready,
)
from page_looks import PHONE, require_accessible, require_legible, resize
from playwright.sync_api import Browser, Page
from waiting import wait_until

from nearfar.compiler.browser.page_server import PageServer

# The stored conversations, as the page of a killed tab has left them.
STORED = """() => new Promise((resolve, reject) => {
    const request = indexedDB.open("nearfar conversations");
    request.onerror = () => reject(request.error);
    request.onsuccess = () => {
        const all = request.result.transaction("conversations").objectStore("conversations").getAll();
        all.onsuccess = () => { request.result.close(); resolve(all.result); };
    };
})"""


# Deletes the kept answers, as a browser does that needs space, so that a page cannot go on with them.
FORGET = """async () => {
    const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("nearfar-journals");
    const names = [];
    for await (const name of folder.keys()) names.push(name);
    for (const name of names) await folder.removeEntry(name, { recursive: true });
    return names.length;
}"""


@pytest.fixture(scope="module")
def server(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:  # noqa: ARG001
    with page_server(tmp_path_factory.mktemp("conversations")) as server:
        yield server


@pytest.fixture(scope="module")
def loaded(browser: Browser, server: PageServer) -> Iterator[Page]:
    with scripted_page(browser, server) as page:
        yield page


@pytest.fixture
def chat(loaded: Page) -> Page:
    return start_over(loaded)


def titles(page: Page) -> list[str]:
    return page.locator("#history-list .title").all_text_contents()


def stored(page: Page, question: str) -> list[dict[str, Any]]:
    """The stored conversations that begin with a question."""
    all_stored: list[dict[str, Any]] = page.evaluate(STORED)
    return [conversation for conversation in all_stored if conversation["turns"][0]["question"] == question]


def answers(page: Page, question: str) -> list[str]:
    return [turn["answer"] for turn in stored(page, question)[0]["turns"]]


def test_conversations_are_stored_found_renamed_exported_and_deleted(chat: Page) -> None:
    script(chat, "An **apple** a day.")
    chat.fill("#system-prompt", "about fruit")
    ask(chat, "tell me of fruit")
    new_chat(chat)
    ask(chat, "tell me of stones")
    chat.reload()
    wait_until_ready(chat)
    assert titles(chat)[:2] == ["tell me of stones", "tell me of fruit"]
    chat.fill("#history-search", "fruit about")
    assert titles(chat) == []
    assert "No conversation" in (chat.text_content("#history-empty") or "")
    chat.fill("#history-search", "APPLE tell fruit")
    assert titles(chat) == ["tell me of fruit"]
    chat.click("#history-list .title")
    assert chat.text_content(".answer strong") == "apple"
    assert chat.input_value("#system-prompt") == "about fruit"
    chat.click(".actions button:text-is('Rename')")
    chat.fill("#history-list input", "Fruit & more")
    chat.keyboard.press("Enter")
    chat.wait_for_selector("#history-list .title:text-is('Fruit & more')")
    with chat.expect_download() as download:
        chat.click(".actions button:text-is('.json')")
    assert download.value.suggested_filename == "Fruit-more.json"
    exported = json.loads(download.value.path().read_text())
    assert (exported["title"], exported["system"]) == ("Fruit & more", "about fruit")
    assert exported["turns"] == [
        {"question": "tell me of fruit", "attachments": [], "private": True, "answer": "An **apple** a day."}
    ]
    with chat.expect_download() as download:
        chat.click(".actions button:text-is('.md')")
    assert "## Model\n\nAn **apple** a day.\n" in download.value.path().read_text()
    # The conversation continues under its own title.
    script(chat, "Pears.")
    ask(chat, "go on")
    assert [message["content"] for message in requests(chat)[0]] == [
        "about fruit",
        "tell me of fruit",
        "An **apple** a day.",
        "go on",
    ]
    chat.fill("#history-search", "")
    chat.wait_for_selector("#history-list li:first-child .title:text-is('Fruit & more')")
    chat.click(".actions button:text-is('Delete')")
    assert "Fruit & more" in titles(chat)
    chat.click(".actions button:text-is('Really delete?')")
    chat.wait_for_selector("#welcome", state="visible")
    assert "Fruit & more" not in titles(chat)
    wait_until(lambda: stored(chat, "tell me of fruit") == [])


def test_a_reload_in_mid_answer_loses_neither_question_nor_answer_nor_what_was_typed(
    chat: Page, tmp_path: Path
) -> None:
    script(chat, "Half of", " it", None, " and the rest.")
    send(chat, "what is saved?")
    # The page saves while the answer goes on, as a tab that is killed has no time to.
    wait_until(lambda: answers(chat, "what is saved?") == ["Half of it"])
    assert [turn["unfinished"] for turn in stored(chat, "what is saved?")[0]["turns"]] == [True]
    (tmp_path / "notes.md").write_text("kept")
    chat.set_input_files("#attach-file", tmp_path / "notes.md")
    chat.fill("#prompt", "a draft")
    chat.fill("#system-prompt", "be kind")
    assert chat.evaluate(FORGET) == 1
    chat.reload()
    wait_until_ready(chat)
    assert chat.locator(".question").all_text_contents() == ["You, privately: what is saved?"]
    assert markdown(chat) == "Half of it"
    assert "did not end" in (chat.text_content(".answer .cut-off") or "")
    assert (chat.input_value("#prompt"), chat.input_value("#system-prompt")) == ("a draft", "be kind")
    assert "notes.md" in (chat.text_content("#attachments .chip") or "")
    assert chat.is_enabled("#send")
    require_legible(chat, "interrupted")
    script(chat, " and more", None)
    chat.click(".answer .regenerate:text-is('Continue')")
    wait_until(lambda: answers(chat, "what is saved?") == ["Half of it and more"])
    assert [message["content"] for message in requests(chat)[0]] == ["be kind", "what is saved?", "Half of it"]
    assert not chat.is_visible(".answer .cut-off")
    chat.evaluate("() => window.release()")
    chat.wait_for_selector(".answer[data-state=done] .foot")
    assert chat.input_value("#prompt") == "a draft"
    wait_until(lambda: "unfinished" not in stored(chat, "what is saved?")[0]["turns"][0])


# The test above continues one; web/test/page/saved_conversation.test.ts has what is stored.
@pytest.mark.exhaustive
def test_an_interrupted_answer_is_written_again(chat: Page) -> None:
    script(chat, "Half of it", None)
    send(chat, "what is repeated?")
    wait_until(lambda: answers(chat, "what is repeated?") == ["Half of it"])
    assert chat.evaluate(FORGET) == 1
    chat.reload()
    wait_until_ready(chat)
    assert markdown(chat) == "Half of it"
    script(chat, "All of it.")
    chat.click(".answer .regenerate:text-is('Answer again')")
    chat.wait_for_selector(".answer .foot")
    assert markdown(chat) == "All of it."
    assert not chat.is_visible(".answer .cut-off")
    wait_until(lambda: answers(chat, "what is repeated?") == ["All of it."])
    assert ["unfinished" in turn for turn in stored(chat, "what is repeated?")[0]["turns"]] == [False]


def test_a_page_that_is_loaded_again_in_mid_answer_goes_on_with_it(chat: Page) -> None:
    chat.fill("#max-tokens", "40")
    chat.fill("#temperature", "1")
    chat.fill("#seed", "7")
    ask(chat, "and then?")
    whole = markdown(chat)
    new_chat(chat)
    hold_next(chat, 20)
    send(chat, "and then?")
    wait_until(lambda: len(markdown(chat)) > 2)
    assert len(markdown(chat)) < len(whole)
    chat.reload()
    wait_until_ready(chat)
    # A stored answer that had ended does not say how fast it was.
    chat.wait_for_selector(".answer .foot span:text-matches('first token')")
    assert markdown(chat) == whole
    assert not chat.is_visible(".answer .cut-off")
    wait_until(
        lambda: [each["turns"][0]["answer"] for each in stored(chat, "and then?")] == [whole, whole],
    )
    wait_until(lambda: chat.evaluate(FORGET) == 0)


# web/test/page/conversations.test.ts has both tabs.
@pytest.mark.exhaustive
def test_two_tabs_on_one_conversation_keep_both_texts_and_say_so(chat: Page) -> None:
    script(chat, "fine")
    ask(chat, "how are you?")
    other = chat.context.new_page()
    try:
        other.goto(chat.url)
        other.wait_for_selector("body[data-state=ready]")
        other.click("#history-list .title:text-is('how are you?')")
        assert markdown(other) == "fine"
        ask(chat, "here")
        other.wait_for_selector("#elsewhere:has-text('has changed in another tab')")
        require_legible(other, "elsewhere")
        other.click("#show-elsewhere")
        other.wait_for_selector(".question >> nth=1")
        assert not other.is_visible("#elsewhere")
        ask(chat, "here again")
        other.wait_for_selector("#elsewhere:has-text('has changed in another tab')")
        script(other, "hello")
        ask(other, "there")
        other.wait_for_selector("#elsewhere:has-text('continues here as a copy')")
        other.wait_for_selector("#history-list .current .title:text-is('how are you? (copy)')")
        questions = [[turn["question"] for turn in each["turns"]] for each in stored(other, "how are you?")]
        assert sorted(questions) == [
            ["how are you?", "here", "here again"],
            ["how are you?", "here", "there"],
        ]
        # The other tab's list shows the copy, too.
        chat.wait_for_selector("#history-list .title:text-is('how are you? (copy)')")
        other.click(".actions button:text-is('Delete')")
        other.click(".actions button:text-is('Really delete?')")
        chat.wait_for_selector("#history-list .title:text-is('how are you? (copy)')", state="detached")
        assert not chat.is_visible("#elsewhere")
    finally:
        other.close()


def test_saved_conversations_are_read_and_exported_without_a_model(chat: Page, server: PageServer) -> None:
    script(chat, "**Kept.**")
    ask(chat, "what is kept?")
    page = chat.context.new_page()
    try:
        resize(page, PHONE)
        page.goto(f"{server.url}?bundle=./nowhere/")
        page.wait_for_selector("#failure", state="visible")
        page.click("#open-history")
        page.click("#history-list .title:text-is('what is kept?')")
        assert page.text_content(".answer strong") == "Kept."
        assert not page.is_visible("#failure")
        assert "read and export" in (page.text_content("#near-words") or "")
        assert not any(page.is_visible(part) for part in (".edit", ".regenerate", "#new-chat", "#composer"))
        require_legible(page, "reading")
        require_accessible(page)
        resize(page, PHONE)
        page.click("#open-history")
        with page.expect_download() as download:
            page.click(".actions button:text-is('.md')")
        assert "**Kept.**" in download.value.path().read_text()
        page.keyboard.press("Escape")
        page.click("#leave")
        page.wait_for_selector("#failure", state="visible")
        assert page.locator(".answer").count() == 0
    finally:
        page.close()


def test_an_earlier_message_is_edited_and_sent_again(chat: Page) -> None:
    script(chat, "fine")
    for text in ("one", "two", "three"):
        ask(chat, text)
    chat.hover(".question >> nth=1")
    chat.click(".edit >> nth=1")
    assert chat.input_value("#prompt") == "two"
    assert chat.is_visible("#edit-note")
    chat.click("#cancel-edit")
    assert chat.locator(".question").count() == 3
    chat.click(".edit >> nth=1")
    send(chat, "deux")
    chat.wait_for_selector(".answer[data-state=done] >> nth=1")
    assert chat.locator(".question").count() == 2
    assert [message["content"] for message in requests(chat)[-1]] == ["one", "fine", "deux"]
    assert not chat.is_visible("#edit-note")
