"""The chat page with answers that the tests write: rendering, context, attachments, looks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_pages import (
    SCRIPTED,
    ask,
    click_and_see,
    new_chat,
    open_page,
    page_server,
    requests,
    script,
    scripted_page,
    send,
    start_over,
)
from page_looks import DESK, PHONE, picture, require_accessible, require_legible, resize
from playwright.sync_api import Browser, Page
from sounds import wav

from nearfar.compiler.browser.page_server import PageServer

# Makes the bundle ./other/ of a page, which has one other shard than ./bundle/, and lets no file grow.
FULL = """(() => {
    const real = window.fetch;
    window.fetch = async (input, init) => {
        const url = String(input.url ?? input);
        if (!url.endsWith("/other/manifest.json")) return real(input, init);
        const manifest = await (await real(url.replace("/other/", "/bundle/"))).json();
        manifest.shards[0].sha256 = "0".repeat(64);
        return new Response(JSON.stringify(manifest));
    };
    FileSystemWritableFileStream.prototype.truncate = async () => {
        throw new DOMException("full", "QuotaExceededError");
    };
})()"""
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
def server(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:  # noqa: ARG001
    with page_server(tmp_path_factory.mktemp("chat")) as server:
        yield server


@pytest.fixture(scope="module")
def loaded(browser: Browser, server: PageServer) -> Iterator[Page]:
    with scripted_page(browser, server, kept=True) as page:
        yield page


@pytest.fixture
def chat(loaded: Page) -> Page:
    return start_over(loaded)


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
    click_and_see(chat, ".copy-code", "Copied")
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


# web/test/page/fit_messages.test.ts has what is left out.
@pytest.mark.exhaustive
def test_a_full_context_drops_the_oldest_turns_but_not_the_system_prompt(chat: Page) -> None:
    chat.fill("#system-prompt", "be brief")
    context = chat.evaluate("() => window.nearfar.engine.info.context")
    script(chat, "done")
    for turn in range(4):
        ask(chat, f"{turn} {'word ' * 20}")
    assert chat.locator(".answer .problem").count() == 0
    line = chat.locator(".forgotten")
    assert "no longer reads" in (line.text_content() or "")
    # The line is above the first question that the model still reads.
    first = chat.evaluate(
        "() => document.querySelector('.forgotten').nextElementSibling.querySelector('.question').lastChild.data"
    )
    last = f"last {'word ' * 20}"
    ask(chat, last)
    messages = requests(chat)[-1]
    assert messages[0] == {"role": "system", "content": "be brief"}
    assert messages[1]["content"] >= first
    assert messages[-1]["content"] == last.strip()
    assert chat.evaluate("(messages) => window.nearfar.engine.countTokens(messages)", messages) + 4 <= context


# web/test/page/sides_answer.test.ts has the answers whose context becomes full.
@pytest.mark.exhaustive
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


def is_in_view(page: Page, selector: str) -> bool:
    """Whether an element is between the bar and the composer."""
    view = """(node) => {
        const [{ top, bottom }, bar, composer] = [node, document.querySelector(".bar"),
            document.querySelector("#composer")].map((each) => each.getBoundingClientRect());
        return bottom > top && top >= bar.bottom - 1 && bottom <= composer.top + 30;
    }"""
    return bool(page.eval_on_selector(selector, view))


def test_after_a_long_message_the_answer_or_the_error_is_in_view(chat: Page) -> None:
    resize(chat, PHONE)
    chat.evaluate("() => { window.countTokens = window.nearfar.engine.countTokens; }")
    chat.evaluate("() => { window.nearfar.engine.countTokens = async () => 10; }")
    script(chat, None, "Short.", None, "\n\nLines:\n\n" + "a line\n\n" * 40)
    send(chat, "\n".join(f"line {number}" for number in range(41)))
    chat.wait_for_selector(".answer[data-state=streaming]")
    assert is_in_view(chat, ".answer .text")
    chat.evaluate("() => window.release()")
    chat.wait_for_selector(".answer .text:has-text('Short.')")
    assert is_in_view(chat, ".answer .text")
    # A reader who scrolls up stays there.
    chat.evaluate("() => window.scrollTo(0, 0)")
    chat.wait_for_function("() => document.documentElement.scrollTop === 0")
    chat.evaluate("() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
    chat.evaluate("() => window.release()")
    chat.wait_for_selector(".answer[data-state=done]")
    assert chat.evaluate("() => document.documentElement.scrollTop") == 0
    new_chat(chat)
    chat.evaluate("() => { window.nearfar.engine.countTokens = window.countTokens; }")
    ask(chat, "\n".join(f"too long {number}" for number in range(41)))
    assert is_in_view(chat, ".answer .problem")
    picture(chat, "long-phone-light")


def test_a_text_file_becomes_part_of_the_message(chat: Page, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("a ``` b\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\x00\xff")
    (tmp_path / "large.txt").write_bytes(b"x" * 256_001)
    script(chat, "read")
    (tmp_path / "clip.mp4").write_bytes(b"\0\0\0\x08ftyp")
    (tmp_path / "talk.wav").write_bytes(wav(bytes(320), 1, 16))
    for name, words in (
        ("picture.png", "is an image"),
        ("clip.mp4", "is a video, which the model on this device"),
        ("talk.wav", "is a recording, and nothing on this device hears"),
        ("large.txt", "at most 256 kB"),
    ):
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
    page = open_page(browser, [])
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
    page.context.close()


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
    require_legible(chat, "rich")
    require_accessible(chat)
    for size in (DESK, PHONE):
        resize(chat, size)
        sizes = """() => [...document.querySelectorAll("button, input, select, textarea, summary, a.plain")]
            .filter((node) => node.checkVisibility() && !node.closest(".unseen") && node.type !== "radio")
            .map((node) => [node.getBoundingClientRect(), node.outerHTML.slice(0, 120)])
            .filter(([box]) => box.width < 24 || box.height < 24)
            .map(([, html]) => html)"""
        assert chat.evaluate(sizes) == []
    chat.click("#open-history")
    chat.wait_for_selector("#history-search", state="visible")
    picture(chat, "history-phone-light")
    chat.keyboard.press("Escape")
    chat.wait_for_selector("#history-search", state="hidden")


def test_with_full_storage_the_page_lists_the_stored_models_and_deletes_them(chat: Page, server: PageServer) -> None:
    """The last test, because it deletes the model that the others load."""
    page = chat.context.new_page()
    try:
        page.add_init_script(FULL)
        page.goto(f"{server.url}?bundle=./other/")
        page.wait_for_selector("#failure", state="visible")
        assert "There is not enough storage: the model needs" in (page.text_content("#failure-message .what") or "")
        assert "cache." not in (page.text_content("#failure-message") or "")
        # The other item is the part of the new bundle that both share.
        item = page.locator("#failure #stored-list li:has-text('last used')")
        assert "page-model" in (item.text_content() or "")
        assert "MB" in (item.text_content() or "") or "kB" in (item.text_content() or "")
        require_legible(page, "storage")
        item.locator("button").click()
        item.locator("button:text-is('Really delete?')").click()
        page.wait_for_selector("#failure #stored-list li:has-text('last used')", state="detached")
        page.click("#stored-list button")
        page.click("#stored-list button:text-is('Really delete?')")
        page.wait_for_selector("#stored-help:has-text('stores no models')")
    finally:
        page.close()
