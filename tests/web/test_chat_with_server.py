"""The chat page without a model, with the test's own server: long conversations, reasoning, private messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from chat_pages import ask, markdown, new_chat, open_page, send
from playwright.sync_api import Browser, Page, Route

from nearfar.compiler.browser.page_server import PageServer

FAR = "http://far.test"
NO_WEBGPU = "delete Navigator.prototype.gpu"
# The number of messages that the server's context holds.
MOST_MESSAGES = 3
ALLOW = {"Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": "*"}


class Server:
    """OpenAI's API, as far as the page uses it. ``deltas`` are the parts of the next answers."""

    def __init__(self) -> None:
        self.deltas: list[dict[str, str]] = [{"content": "fine"}]
        self.chats: list[list[dict[str, Any]]] = []

    def answer(self, route: Route) -> None:
        if route.request.method == "OPTIONS":
            route.fulfill(status=204, headers=ALLOW)
        elif route.request.url.endswith("/models"):
            route.fulfill(json={"data": [{"id": "big"}]}, headers=ALLOW)
        else:
            messages = json.loads(route.request.post_data or "")["messages"]
            if len(messages) > MOST_MESSAGES:
                error = {"message": "Too long.", "type": "invalid_request_error", "code": "context_length_exceeded"}
                route.fulfill(status=400, json={"error": error}, headers=ALLOW)
                return
            self.chats.append(messages)
            head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "big"}
            choices = [
                *({"index": 0, "delta": delta, "finish_reason": None} for delta in self.deltas),
                {"index": 0, "delta": {}, "finish_reason": "stop"},
            ]
            events = [json.dumps({**head, "choices": [choice]}) for choice in choices]
            body = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
            route.fulfill(body=body, headers={**ALLOW, "Content-Type": "text/event-stream"})


@pytest.fixture(scope="module")
def site(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:  # noqa: ARG001
    """The page without a bundle, and the manifest of a finder without its weights."""
    finder = tmp_path_factory.mktemp("finder")
    classifier = {"per_token": True, "labels": ["O", "B-private_person", "I-private_person"]}
    (finder / "manifest.json").write_text(json.dumps({"classifier": classifier}))
    with PageServer(tmp_path_factory.mktemp("nothing"), finder=finder) as server:
        yield server


# Whether a stored conversation is locked: a reload may abort a write that has just begun.
STORED_LOCK = """async () => {
    const open = indexedDB.open("nearfar conversations");
    const database = await new Promise((resolve) => { open.onsuccess = () => resolve(open.result); });
    const all = database.transaction("conversations").objectStore("conversations").getAll();
    const conversations = await new Promise((resolve) => { all.onsuccess = () => resolve(all.result); });
    database.close();
    return conversations.some(({ locked }) => locked);
}"""


@pytest.fixture
def far() -> Server:
    return Server()


@pytest.fixture
def chat(browser: Browser, site: PageServer, far: Server) -> Iterator[Page]:
    page = open_page(browser, [], NO_WEBGPU)
    page.route(f"{FAR}/**", far.answer)
    connect(page, site)
    page.wait_for_selector("body[data-near=failed][data-state=ready]")
    yield page
    page.context.close()


def connect(page: Page, site: PageServer, **parameters: str) -> None:
    page.goto(f"{site.url}?{urlencode({'far': FAR, 'far-model': 'big', 'dialect': 'openai', **parameters})}")
    if not parameters:
        page.click("#consent-accept")


def contents(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages]


# test_chat_page.py drops the oldest turns of a full context.
@pytest.mark.exhaustive
def test_the_oldest_turns_are_dropped_when_the_servers_context_is_full(chat: Page, far: Server) -> None:
    for text in ("one", "two", "three"):
        ask(chat, text)
    assert chat.locator(".answer .problem").count() == 0
    assert contents(far.chats[-1]) == ["two", "fine", "three"]
    line = chat.locator(".forgotten")
    assert "the oldest message," in (line.text_content() or "")
    assert "two" in (line.locator("xpath=following-sibling::*[1]").text_content() or "")
    ask(chat, "four")
    assert contents(far.chats[-1]) == ["three", "fine", "four"]
    assert "the 2 oldest messages" in (chat.locator(".forgotten").text_content() or "")


@pytest.mark.exhaustive
def test_a_servers_reasoning_is_in_the_thinking_block(chat: Page, far: Server) -> None:
    far.deltas = [{"reasoning_content": "Hm, **two**"}, {"reasoning_content": "."}, {"content": "Two."}]
    ask(chat, "count")
    assert markdown(chat) == "Two."
    chat.click(".thinking summary:text-is('Thought')")
    assert chat.text_content(".thinking strong") == "two"
    ask(chat, "go on")
    assert contents(far.chats[-1]) == ["count", "Two.", "go on"]


def test_a_message_with_a_private_pattern_is_not_sent_and_the_page_explains_why(chat: Page, far: Server) -> None:
    state = chat.text_content("#far-state") or ""
    assert "every message that is not private" in state
    assert "a card or account number" in state
    ask(chat, "my card is 4111 1111 1111 1111")
    assert "This message was not sent: it is private" in (chat.text_content(".answer .problem .what") or "")
    assert far.chats == []


def test_with_a_finder_the_page_s_own_policy_masks_and_what_it_cannot_search_stays(
    chat: Page, site: PageServer, far: Server
) -> None:
    connect(chat, site, finder="./finder/")
    chat.wait_for_selector("body[data-near=failed][data-state=ready]")
    assert "A model on this device finds more of them." in (chat.text_content("#far-state") or "")
    # The finder's weights are missing, so nothing is searched.
    ask(chat, "My name is Rosalind.")
    assert "This message was not sent: it is private" in (chat.text_content(".answer .problem .what") or "")
    assert far.chats == []


def test_a_policy_that_names_the_finder_s_labels_is_refused_with_the_kinds(chat: Page, site: PageServer) -> None:
    masks = {"entities": [{"label": "private_person", "kind": "PERSON"}]}
    given = {"version": 1, "mode": "prefer-far", "private": {"masks": masks}}
    chat.route("**/masks.json", lambda route: route.fulfill(json=given))
    connect(chat, site, finder="./finder/", policy="./masks.json")
    chat.wait_for_selector("#failure-far .problem, #far-problem:not([hidden])")
    assert """write "label": "PERSON\"""" in (chat.text_content("body") or "")


# web/test/page/lock.test.ts closes and opens locks.
@pytest.mark.exhaustive
def test_the_lock_of_a_conversation_is_closed_again_after_a_reload(chat: Page, far: Server) -> None:
    ask(chat, "hello")
    chat.click("#private")
    chat.wait_for_function(STORED_LOCK)
    chat.reload()
    chat.wait_for_selector("body[data-near=failed][data-state=ready]")
    assert chat.get_attribute("#private", "aria-pressed") == "true"
    chat.click("#history-list .title")
    chat.wait_for_selector("#private[aria-pressed=true]")
    assert chat.is_enabled("#private")
    send(chat, "my diary says quokka")
    assert (chat.text_content("#status") or "").startswith("Not sent.")
    assert len(far.chats) == 1
    # The user may open the lock again, because no message is private yet.
    chat.click("#private")
    ask(chat, "hello again")
    assert len(far.chats) == 2
    new_chat(chat)
    chat.click("#history-list .title")
    assert chat.get_attribute("#private", "aria-pressed") == "false"


@pytest.mark.exhaustive
def test_a_conversation_with_a_private_message_is_locked_when_it_is_opened_again(chat: Page, far: Server) -> None:
    store = """async () => {
        const open = indexedDB.open("nearfar conversations");
        const database = await new Promise((resolve) => { open.onsuccess = () => resolve(open.result); });
        const change = database.transaction("conversations", "readwrite");
        change.objectStore("conversations").put({
            id: "1", title: "diary", updatedMs: 1, model: null, system: "", locked: false,
            turns: [{ question: "my diary says quokka", attachments: [], private: true, answer: "ok" }],
        });
        await new Promise((resolve) => { change.oncomplete = resolve; });
        database.close();
    }"""
    chat.evaluate(store)
    chat.reload()
    chat.wait_for_selector("body[data-near=failed][data-state=ready]")
    chat.click("#history-list .title")
    chat.wait_for_selector("#private[aria-pressed=true]:disabled")
    send(chat, "hello")
    assert (chat.text_content("#status") or "").startswith("Not sent.")
    assert far.chats == []
    new_chat(chat)
    assert chat.get_attribute("#private", "aria-pressed") == "false"
