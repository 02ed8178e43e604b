"""The chat page with answers that the tests write: rendering, context, history, attachments."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_pages import ask, light_server, new_chat, open_page, send
from page_looks import DESK, NAMELESS, PHONE, SCREENSHOTS, look
from playwright.sync_api import Browser, Page

from nearfar.compiler.browser.page_server import PageServer

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
# Makes the page's engine answer with these pieces. At a piece that is null, the answer pauses until `release`.
SCRIPTED = """(pieces) => {
    const engine = window.nearfar.engine;
    window.requests = [];
    engine.generate = async function* (messages, options) {
        window.requests.push(messages);
        for (const piece of pieces) {
            options.signal.throwIfAborted();
            if (piece === null) await new Promise((resolve) => { window.release = resolve; });
            else yield { type: "token", text: piece, tokenId: 1 };
        }
        const timings = { promptTokens: 1, cachedTokens: 0, completionTokens: 1, timeToFirstTokenMs: 1,
            tokensPerSecond: null };
        yield { type: "done", text: "", finishReason: "stop", timings };
    };
}"""
RICH = """<think>The reader wants **everything**.</think>

# Sorting

Quicksort takes $O(n \\log n)$ steps on average, and *at most* \\(n^2\\):

$$
\\sum_{i=1}^{n} i = \\frac{n(n+1)}{2}
$$

```python
def quicksort(items: list[int]) -> list[int]:
    # An empty list is sorted.
    return [] if not items else sorted(items)
```

| algorithm | average | worst |
|---|:-:|--:|
| quicksort | n log n | n² |
| heapsort | n log n | n log n |

1. Choose a *pivot*
2. Split, and see [the book](https://example.com/sorting)

It costs $5 or $6.
"""
HOSTILE = """<script>window.hacked = 1</script>
<img src=x onerror="window.hacked = 2"> ![picture](https://tracker.test/pixel.png)
<iframe src="https://tracker.test/frame"></iframe><a href="javascript:window.hacked = 3">raw</a>

[link](javascript:window.hacked=4) [data](data:text/html,<script>hacked=5</script>) [good](https://example.com/)

<svg><a xlink:href="javascript:window.hacked=6"><text>x</text></a></svg><style>body{display:none}</style>

| <img src=https://tracker.test/table.png> |
|---|
| <details open ontoggle=window.hacked=7> |

$\\href{javascript:window.hacked=8}{x}$ $\\includegraphics{https://tracker.test/tex.png}$

```html" onmouseover="window.hacked=9
<img src=https://tracker.test/code.png onerror=window.hacked=10>
```
"""


@pytest.fixture(scope="module")
def server(tiny_bundle: Path, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:  # noqa: ARG001
    with light_server(tiny_bundle, tmp_path_factory.mktemp("chat")) as server:
        yield server


@pytest.fixture(scope="module")
def loaded(browser: Browser, server: PageServer) -> Iterator[Page]:
    """The chat page with its model. Its console must stay silent, and it may only send requests to its own host."""
    problems: list[str] = []
    page = open_page(browser, problems)
    page.on(
        "request",
        lambda request: None if request.url.startswith((server.url, "blob:")) else problems.append(request.url),
    )
    page.goto(server.url)
    page.wait_for_selector("body[data-state=ready]")
    page.evaluate("() => { window.generate = window.nearfar.engine.generate; }")
    yield page
    page.context.close()
    assert problems == []


@pytest.fixture
def chat(loaded: Page) -> Page:
    loaded.set_viewport_size({"width": DESK[0], "height": DESK[1]})
    loaded.evaluate("() => { window.nearfar.engine.generate = window.generate; }")
    if loaded.is_visible("#new-chat"):
        new_chat(loaded)
    loaded.fill("#max-tokens", "4")
    return loaded


def script(page: Page, *pieces: str | None) -> None:
    """The next answers consist of these pieces; None waits until `release`."""
    page.evaluate(SCRIPTED, list(pieces))


def requests(page: Page) -> Sequence[Sequence[dict[str, Any]]]:
    messages: Sequence[Sequence[dict[str, Any]]] = page.evaluate("() => window.requests")
    return messages


def titles(page: Page) -> list[str]:
    return page.locator("#history-list .title").all_text_contents()


def test_markdown_code_tables_and_formulas_are_rendered(chat: Page) -> None:
    script(chat, RICH)
    ask(chat, "sort")
    text = chat.locator(".answer .text")
    assert text.locator("h3").text_content() == "Sorting"
    chat.wait_for_selector(".answer .hljs-keyword")
    chat.wait_for_selector(".answer div.maths mfrac", state="attached")
    assert text.locator("math").count() == 3
    assert text.locator("table td").count() == 6
    assert text.locator("ol li").count() == 2
    assert "It costs $5 or $6." in (text.text_content() or "")
    chat.click(".copy-code")
    chat.wait_for_selector(".copy-code:has-text('Copied')")
    assert chat.evaluate("() => navigator.clipboard.readText()").startswith("def quicksort(items: list[int])")


def test_reasoning_is_folded_and_left_out_of_the_copied_answer_and_the_next_prompt(chat: Page) -> None:
    script(chat, "<thi", "nk>Hmm, **two**", None, " it is.</think>\n\nTwo.")
    send(chat, "count")
    chat.wait_for_selector(".thinking summary:text-is('Thinking …')")
    assert not chat.is_visible(".thinking .markdown")
    chat.evaluate("() => window.release()")
    chat.wait_for_selector(".answer[data-state=done]")
    chat.click(".thinking summary:text-is('Thought')")
    assert chat.is_visible(".thinking strong")
    chat.click(".answer .copy")
    chat.wait_for_selector("#status:text-is('Copied')", state="attached")
    assert chat.evaluate("() => navigator.clipboard.readText()") == "Two."
    script(chat, "Three.")
    ask(chat, "and then?")
    assert [message["content"] for message in requests(chat)[0]] == ["count", "Two.", "and then?"]


def test_a_hostile_answer_cannot_run_or_load_anything(chat: Page) -> None:
    """The page's fixture fails on any request to another host, and on any refusal of the Content-Security-Policy."""
    script(chat, HOSTILE)
    ask(chat, "attack")
    chat.wait_for_selector(".answer .code")
    assert chat.evaluate("() => window.hacked") is None
    harmful = "script, img, iframe, style, svg:not(.icon), object, form, [onerror], [ontoggle], [onmouseover], [style]"
    assert chat.locator(f".answer .text :is({harmful})").count() == 0
    links = chat.evaluate(
        "() => [...document.querySelectorAll('.answer .text a[href]')].map((a) => [a.href, a.rel, a.target])"
    )
    assert links == [
        [address, "noopener noreferrer", "_blank"]
        for address in ("https://tracker.test/pixel.png", "https://example.com/")
    ]
    assert "<script>" in (chat.text_content(".answer .text") or "")


def test_finished_blocks_keep_their_elements_while_the_answer_grows(chat: Page) -> None:
    pieces = [RICH[index : index + 7] for index in range(0, len(RICH), 7)]
    middle = next(index for index in range(len(pieces)) if "|---|" in "".join(pieces[:index]))
    script(chat, *pieces[:middle], None, *pieces[middle:])
    send(chat, "sort")
    chat.wait_for_selector(".answer .table, .answer .hljs-keyword")
    chat.wait_for_selector(".answer div.maths math")
    before = """() => {
        const blocks = [...document.querySelectorAll('.answer .text > .markdown > .block')].slice(0, -1);
        window.finished = blocks.flatMap((block) => [block, ...block.querySelectorAll("*")]);
        return blocks.length;
    }"""
    assert chat.evaluate(before) >= 4
    chat.evaluate("() => window.release()")
    chat.wait_for_selector(".answer[data-state=done]")
    assert chat.evaluate("() => window.finished.every((node) => node.isConnected)")
    assert chat.locator(".answer .text > .markdown > .block").count() == 7


def test_a_full_context_drops_the_oldest_turns_but_not_the_system_prompt(chat: Page) -> None:
    chat.fill("#system-prompt", "be brief")
    context = chat.evaluate("() => window.nearfar.engine.info.context")
    for turn in range(4):
        ask(chat, f"{turn} {'word ' * 20}")
    assert chat.locator(".answer .problem").count() == 0
    line = chat.locator(".forgotten")
    assert "no longer reads" in (line.text_content() or "")
    # The line is above the first question that the model still reads.
    first = chat.evaluate(
        "() => document.querySelector('.forgotten').nextElementSibling.querySelector('.question').lastChild.data"
    )
    script(chat, "done")
    last = f"last {'word ' * 20}"
    ask(chat, last)
    messages = requests(chat)[0]
    assert messages[0] == {"role": "system", "content": "be brief"}
    assert messages[1]["content"] >= first
    assert messages[-1]["content"] == last.strip()
    assert chat.evaluate("(messages) => window.nearfar.engine.countTokens(messages)", messages) + 4 <= context


def test_an_answer_that_fills_the_context_continues(chat: Page) -> None:
    chat.fill("#max-tokens", "40")
    question = "word " * 45
    ask(chat, question)
    assert chat.locator(".answer .problem").count() == 0
    facts = chat.text_content(".answer .facts") or ""
    assert "40 tokens" in facts
    messages = [{"role": "user", "content": question}]
    context, prompt = chat.evaluate(
        "async (messages) => [window.nearfar.engine.info.context, await window.nearfar.engine.countTokens(messages)]",
        messages,
    )
    assert prompt + 40 > context


def test_problems_are_explained_in_plain_words(chat: Page) -> None:
    ask(chat, "long " * 80)
    assert "too long for the model" in (chat.text_content(".answer .problem .what") or "")
    assert "reads 256 at once" in (chat.text_content(".answer .problem .what") or "")
    assert "Shorten the message" in (chat.text_content(".answer .problem .fix") or "")
    assert not chat.is_visible(".answer .problem .technical p")


def test_conversations_are_stored_found_renamed_exported_and_deleted(chat: Page) -> None:
    script(chat, "An **apple** a day.")
    chat.fill("#system-prompt", "about fruit")
    ask(chat, "tell me of fruit")
    new_chat(chat)
    ask(chat, "tell me of stones")
    chat.reload()
    chat.wait_for_selector("body[data-state=ready]")
    chat.evaluate("() => { window.generate = window.nearfar.engine.generate; }")
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
    chat.reload()
    chat.wait_for_selector("body[data-state=ready]")
    chat.evaluate("() => { window.generate = window.nearfar.engine.generate; }")
    assert "Fruit & more" not in titles(chat)


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


def test_a_text_file_becomes_part_of_the_message(chat: Page, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("a ``` b\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\x00\xff")
    (tmp_path / "large.txt").write_bytes(b"x" * 256_001)
    script(chat, "read")
    for name, words in (("picture.png", "is not a text file"), ("large.txt", "at most 256 kB")):
        chat.set_input_files("#attach-file", tmp_path / name)
        chat.wait_for_selector(f"#attachment-problem:has-text('{words}')")
    transfer = chat.evaluate_handle(
        "(text) => { const data = new DataTransfer(); data.items.add(new File([text], 'notes.md')); return data; }",
        "a ``` b\n",
    )
    chat.dispatch_event("body", "drop", {"dataTransfer": transfer})
    chat.wait_for_selector("#attachments .chip:has-text('notes.md')")
    assert not chat.is_visible("#attachment-problem")
    ask(chat, "what is in it?")
    assert requests(chat)[0][0]["content"] == "notes.md:\n````\na ``` b\n\n````\n\nwhat is in it?"
    assert "notes.md" in (chat.text_content(".question .chip") or "")
    assert not chat.is_visible("#attachments .chip")


def test_a_host_with_several_models_offers_them(browser: Browser, server: PageServer) -> None:
    page = browser.new_page()
    models = [{"name": "Small", "bundle": "./small/"}, {"name": "Large", "bundle": "./large/"}, {"name": 3}]
    page.route("**/bundles.json", lambda route: route.fulfill(json=models))
    page.goto(f"{server.url}?bundle=./small/")
    page.wait_for_selector("#models:not([hidden])", state="attached")
    assert page.eval_on_selector_all(
        "#model-picker option", "(options) => options.map((option) => option.textContent)"
    ) == [
        "Small",
        "Large",
    ]
    assert page.input_value("#model-picker") == "./small/"
    page.eval_on_selector(
        "#model-picker", "(select) => { select.value = './large/'; select.dispatchEvent(new Event('change')); }"
    )
    page.wait_for_url("**/?bundle=.%2Flarge%2F")
    page.close()


def test_the_page_opens_and_answers_without_a_network(chat: Page) -> None:
    chat.evaluate("async () => { await navigator.serviceWorker.ready; }")
    cached = chat.evaluate("async () => (await caches.keys()).filter((name) => name.startsWith('nearfar page '))")
    assert len(cached) == 1
    page = chat.context.new_page()
    chat.context.set_offline(True)
    try:
        page.goto(f"{chat.url}?bundle=./bundle/")
        page.wait_for_selector("body[data-state=ready]")
        page.fill("#max-tokens", "2")
        ask(page, "hello")
        assert page.locator(".answer .problem").count() == 0
        # The parts that load when they are first needed are cached as well.
        page.evaluate(SCRIPTED, [RICH])
        ask(page, "sort")
        page.wait_for_selector(".answer .hljs-keyword")
        page.wait_for_selector(".answer math")
    finally:
        chat.context.set_offline(False)
        page.close()


def test_every_part_is_legible_and_large_enough_to_touch(chat: Page) -> None:
    script(chat, RICH)
    ask(chat, "How fast are sorting algorithms, and why?")
    chat.wait_for_selector(".answer .hljs-keyword")
    chat.click(".thinking summary")
    for shown in look(chat):
        chat.screenshot(path=SCREENSHOTS / f"rich-{shown}.png")
    chat.evaluate(AXE.read_text())
    for width, height in (DESK, PHONE):
        chat.set_viewport_size({"width": width, "height": height})
        tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
        found = chat.evaluate("(tags) => window.axe.run(document, { runOnly: tags })", tags)
        assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found["violations"]] == []
        sizes = """() => [...document.querySelectorAll("button, input, select, textarea, summary, a.plain")]
            .filter((node) => node.checkVisibility() && !node.closest(".unseen") && node.type !== "radio")
            .map((node) => [node.getBoundingClientRect(), node.outerHTML.slice(0, 120)])
            .filter(([box]) => box.width < 24 || box.height < 24)
            .map(([, html]) => html)"""
        assert chat.evaluate(sizes) == []
    assert chat.evaluate(NAMELESS) == []
    chat.emulate_media(color_scheme="light")
    chat.click("#open-history")
    chat.wait_for_selector("#history-search", state="visible")
    chat.screenshot(path=SCREENSHOTS / "history-phone-light.png")
    chat.keyboard.press("Escape")
    chat.wait_for_selector("#history-search", state="hidden")
