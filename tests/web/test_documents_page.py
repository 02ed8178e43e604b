"""The documents page: what it reads, what its answers cite, and every byte that leaves it.

The near model's answers are written by the tests. One page serves all tests, in their order: first without a server.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from chat_pages import open_page
from light_bundle import lighten
from page_looks import require_accessible, require_legible
from page_model import page_bundle, page_encoder
from pdf_files import pdf_of
from playwright.sync_api import Browser, Page
from pypdf import PdfWriter
from server_thread import serving

from nearfar.compiler.browser.page_server import PageServer

POLICY = {"version": 1, "mode": "prefer-far", "private": {"patterns": ["secret-[0-9]{4}"]}}
# The tiny encoder has one token for each character, and reads 128. The border of a private passage is 64 characters.
FILLER = "Nothing happens on the long road between the two towns, in summer or in winter."
TOWN = f"""# Ben

Ben lives in Rome.

# Road

{FILLER}

# Key

The alarm code is secret-1234.

# River

{FILLER[::-1]}

# Ana

Ana lives in Oslo.
"""
DIARY = "Lena met the mayor."
W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
# Makes the page's engine answer with this text, whatever the length of the prompt.
SCRIPTED = """(text) => {
    const engine = window.nearfar.engine;
    window.requests = window.requests ?? [];
    engine.countTokens = async () => 10;
    engine.generate = async function* (messages) {
        window.requests.push(messages.map(({ content }) => content).join());
        yield { type: "token", text, tokenId: 1 };
        yield { type: "done", text: "", finishReason: "stop", timings: { promptTokens: 1, cachedTokens: 0,
            completionTokens: 1, timeToFirstTokenMs: 1, tokensPerSecond: null } };
    };
}"""
DROP = """(files) => {
    const data = new DataTransfer();
    for (const [name, text] of files) data.items.add(new File([text], name));
    return data;
}"""
# Whether the service worker has cached PDF.js, its encodings and the encoder's manifest.
KEPT = """async () => {
    const cached = [];
    for (const name of await caches.keys()) cached.push(...(await (await caches.open(name)).keys()));
    return ["/read_pdf-", "/pdf.worker.min.mjs", "/UniJIS-UTF16-H.bcmap", "/encoder/manifest.json"].every((part) =>
        cached.some(({ url }) => url.includes(part)));
}"""


class Far:
    """A server with OpenAI's API that keeps every byte of its clients."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.prompts: list[str] = []
        self.answer = "Ana is in Oslo [1]."
        far = self

        class Handler(BaseHTTPRequestHandler):
            def do_OPTIONS(self) -> None:
                self._reply(b"", "text/plain")

            def do_GET(self) -> None:
                self._reply(json.dumps({"data": [{"id": "big"}]}).encode(), "application/json")

            def do_POST(self) -> None:
                body = self._record()
                far.prompts.append(json.loads(body)["messages"][-1]["content"])
                head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "big"}
                choices: list[dict[str, Any]] = [
                    {"index": 0, "delta": {"role": "assistant", "content": far.answer}, "finish_reason": None},
                    {"index": 0, "delta": {}, "finish_reason": "stop"},
                ]
                events = [json.dumps({**head, "choices": [choice]}) for choice in choices]
                self._reply(
                    "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode(), "text/event-stream"
                )

            def _record(self) -> bytes:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                far.received += self.requestline.encode("latin-1") + bytes(self.headers) + body
                return body

            def _reply(self, body: bytes, kind: str) -> None:
                if self.command != "POST":
                    self._record()
                self.send_response(200)
                for name, value in (("Origin", "*"), ("Headers", "*"), ("Methods", "*")):
                    self.send_header(f"Access-Control-Allow-{name}", value)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@dataclass
class Opened:
    """``problems``: what the console reports. ``sent``: the method, the address and the body of each request of the
    page and of its worker.
    """

    page: Page
    far: Far
    origin: str
    problems: list[str]
    sent: list[tuple[str, str, str | None]] = field(default_factory=list)


@pytest.fixture(scope="module")
def far() -> Iterator[Far]:
    far = Far()
    with serving(far.server):
        yield far


@pytest.fixture(scope="module")
def opened(browser: Browser, far: Far, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    folder = tmp_path_factory.mktemp("documents")
    for name, bundle in (("near", page_bundle()), ("encoder", page_encoder())):
        shutil.copytree(bundle, folder / name)
    lighten(folder / "near")
    (folder / "policy.json").write_text(json.dumps(POLICY))
    problems: list[str] = []
    page = open_page(browser, problems, kept=True)
    with PageServer(folder / "near", policy=folder / "policy.json", encoder=folder / "encoder") as server:
        opened = Opened(page, far, server.url, problems)
        page.context.on("request", lambda one: opened.sent.append((one.method, one.url, one.post_data)))
        page.goto(server.documents_url)
        page.wait_for_selector("body[data-state=ready]")
        files = page.evaluate_handle(DROP, [["town.md", TOWN], ["diary.txt", DIARY]])
        page.dispatch_event("body", "drop", {"dataTransfer": files})
        page.wait_for_selector("#documents li >> nth=1")
        yield opened
        page.context.close()
    assert problems == []


def ask(page: Page, question: str, *, near: str = "Ben is in Rome [1].") -> str:
    """Ask, and return the text of the answer with its citations."""
    page.evaluate(SCRIPTED, near)
    page.fill("#question", question)
    page.press("#question", "Enter")
    page.wait_for_function(
        "(asked) => document.querySelector('#asked').textContent === asked"
        " && ['done', 'failed'].includes(document.querySelector('#result').dataset.state)",
        arg=question,
    )
    assert not page.is_visible("#answer-problem"), page.text_content("#answer-problem")
    return page.text_content("#answer") or ""


def add(page: Page, files: dict[str, bytes]) -> None:
    """Choose these files."""
    given = [{"name": name, "mimeType": "application/octet-stream", "buffer": data} for name, data in files.items()]
    page.set_input_files("#files", given)  # type: ignore[arg-type]


def names(page: Page) -> list[str]:
    """The names of the documents that a page lists."""
    return sorted(page.locator("#documents .name").all_text_contents())


def paragraph(text: str) -> str:
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


def encrypted(pdf: bytes) -> bytes:
    """The PDF with a password that its readers need."""
    writer = PdfWriter(clone_from=BytesIO(pdf))
    writer.encrypt("password", algorithm="RC4-128")
    written = BytesIO()
    writer.write(written)
    return written.getvalue()


def connect(opened: Opened) -> None:
    """Connect the server, unless an earlier test has."""
    page = opened.page
    if "127.0.0.1" in (page.text_content("#library-words") or ""):
        return
    page.click("#open-panel")
    page.fill("#far-url", opened.far.url)
    page.select_option("#far-dialect", "openai")
    page.click("#far-connect")
    page.wait_for_selector("#library-words:has-text('127.0.0.1')")
    page.keyboard.press("Escape")


def test_without_a_server_nothing_leaves_the_device_and_the_citation_lights_up(opened: Opened) -> None:
    page = opened.page
    assert ask(page, "Ben lives in Rome") == "Ben is in Rome.1"
    assert "Answered on this device, from 5 of 5" in (page.text_content("#route") or "")
    assert page.locator("#sources li.cited").count() == 1
    assert "Ben lives in Rome." in (page.text_content("#sources li.cited .passage") or "")
    page.hover(".citation")
    assert page.locator("#sources li.lit").get_attribute("id") == "source-1"
    page.click("#sources li.cited button")
    assert page.text_content("#reader mark") == "Ben lives in Rome."
    page.click("#close-reader")
    assert {(method, body) for method, _, body in opened.sent} <= {("GET", None), ("HEAD", None)}
    assert all(url.startswith((opened.origin, "blob:")) for _, url, _ in opened.sent)
    assert not any(word in url for _, url, _ in opened.sent for word in ("Rome", "town", "secret"))


@pytest.mark.exhaustive
def test_other_files_are_refused_by_name_and_add_nothing(opened: Opened) -> None:
    page = opened.page
    files = {
        "photo.png": (b"\x89PNG\0\xff", "photo.png is an image"),
        "broken.pdf": (b"%PDF-1.7\0\xff", "broken.pdf is not a PDF that can be read"),
        "locked.pdf": (encrypted(pdf_of(b"BT /F1 12 Tf (a) Tj ET")), "locked.pdf is encrypted"),
        "scan.pdf": (pdf_of(b"0 0 50 50 re f"), "scan.pdf has no text, only images"),
        "long.pdf": (pdf_of(*[b""] * 2001), "long.pdf has 2,001 pages"),
    }
    add(page, {name: data for name, (data, _) in files.items()})
    page.wait_for_selector("#library-problems li >> nth=4")
    problems = page.locator("#library-problems li").all_text_contents()
    assert [problem[: len(words)] for problem, (_, words) in zip(problems, files.values(), strict=True)] == [
        words for _, words in files.values()
    ]
    assert page.locator("#documents li").count() == 2


@pytest.mark.exhaustive
def test_a_word_file_and_a_latin_1_text_are_read_and_stay_after_a_reload_in_mid_batch(
    opened: Opened, tmp_path: Path
) -> None:
    page = opened.page
    with zipfile.ZipFile(tmp_path / "crew.docx", "w", zipfile.ZIP_DEFLATED) as archive:
        office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
        archive.writestr(
            "_rels/.rels", f"<r:rels xmlns:r='urn:r'><r:r Type='{office}' Target='word/text.xml'/></r:rels>"
        )
        archive.writestr("word/text.xml", f"<w:document {W}>{paragraph('Zoe mends sails.')}</w:document>")
    add(page, {"crew.docx": (tmp_path / "crew.docx").read_bytes(), "cafe.txt": "Le café est à Oslo.".encode("latin-1")})
    for name in ("crew.docx", "cafe.txt"):
        page.wait_for_selector(f"#documents li:has-text('{name}')")
    page.click("#documents li:has-text('crew.docx') button[aria-pressed]")
    # The page closes while it reads the third file.
    page.evaluate("""() => sessionStorage.setItem("nearfar pending documents", '["third.txt"]')""")
    page.reload()
    page.wait_for_selector("body[data-state=ready]")
    assert names(page) == ["cafe.txt", "crew.docx", "diary.txt", "town.md"]
    assert "third.txt" in (page.text_content("#library-problems") or "")
    locked = page.locator("#documents li:has-text('crew.docx') button[aria-pressed]")
    assert locked.get_attribute("aria-pressed") == "true"
    assert "Zoe" in ask(page, "Where is the café?", near="Zoe is there.")
    assert "Le café est à Oslo." in page.evaluate("() => window.requests.at(-1)")
    for name in ("crew.docx", "cafe.txt"):
        page.click(f"#documents li:has-text('{name}') button[aria-label^=Remove]")
        page.wait_for_selector(f"#documents li:has-text('{name}')", state="detached")
    page.wait_for_function("() => document.querySelector('#library-problems').childElementCount === 0")


@pytest.mark.exhaustive
def test_two_tabs_that_add_at_the_same_time_show_and_keep_the_documents_of_both(opened: Opened) -> None:
    page = opened.page
    other = page.context.new_page()
    try:
        other.goto(page.url)
        other.wait_for_selector("body[data-state=ready]")
        before = ["diary.txt", "town.md"]
        assert names(other) == before
        # Neither waits for the other before it adds.
        for tab, name in ((page, "here.txt"), (other, "there.txt")):
            add(tab, {name: f"Pia is {name.removesuffix('.txt')}.".encode()})
        for tab in (page, other):
            for name in ("here.txt", "there.txt"):
                tab.wait_for_selector(f"#documents li:has-text('{name}')")
        ask(page, "Where is Pia?", near="Pia is there.")
        assert "Pia is there." in page.evaluate("() => window.requests.at(-1)")
        other.reload()
        other.wait_for_selector("body[data-state=ready]")
        assert names(other) == sorted([*before, "here.txt", "there.txt"])
        for tab, elsewhere, name in ((page, other, "there.txt"), (other, page, "here.txt")):
            tab.click(f"#documents li:has-text('{name}') button[aria-label^=Remove]")
            elsewhere.wait_for_selector(f"#documents li:has-text('{name}')", state="detached")
        assert names(page) == before
    finally:
        other.close()


# The last test here reads a PDF without a network; web/test/page/read_pdf.test.ts and documents.test.ts have its
# pages.
@pytest.mark.exhaustive
def test_a_pdf_is_read_on_this_device_and_its_page_is_cited(opened: Opened) -> None:
    page = opened.page
    line = "BT /F1 12 Tf 20 {} Td ({}) Tj ET\n"
    second = "".join(line.format(y, words) for y, words in ((250, "Zoe mends sails"), (236, "in Bergen.")))
    add(page, {"crew.pdf": pdf_of(line.format(250, FILLER[:40]).encode(), second.encode())})
    page.wait_for_selector("#documents li:has-text('crew.pdf')")
    assert ask(page, "Where does Zoe mend sails?", near="She mends sails [1].") == "She mends sails.1"
    cited = page.locator("#sources li.cited")
    assert cited.locator(".passage").text_content() == "Zoe mends sails\nin Bergen."
    assert "crew.pdf › Page 2" in (cited.locator(".place").text_content() or "")
    page.click("#sources li.cited button")
    page.wait_for_selector("#reader mark:has-text('Bergen')")
    assert page.text_content("#reader mark") == "Zoe mends sails\nin Bergen."
    page.click("#close-reader")
    assert {(method, body) for method, _, body in opened.sent} <= {("GET", None), ("HEAD", None)}
    assert all(url.startswith((opened.origin, "blob:")) for _, url, _ in opened.sent)
    page.click("#documents li:has-text('crew.pdf') button[aria-label^=Remove]")
    page.wait_for_selector("#documents li:has-text('crew.pdf')", state="detached")


def test_far_receives_only_the_passages_that_the_policy_lets_go(opened: Opened) -> None:
    page, far = opened.page, opened.far
    connect(opened)
    page.click("#documents li:has-text('diary.txt') button[aria-pressed]")
    assert "Ana is in Oslo" in ask(page, "Where does Ana live?")
    # The passage with the code and those beside it, which are closer than a private text is long.
    kept = page.locator("#sources .stays").count()
    assert kept >= 1
    assert f"; {kept} did not leave this device" in (page.text_content("#route") or "")
    assert "Ana lives in Oslo." in far.prompts[-1]
    for private in (b"secret", b"1234", b"alarm", b"Lena", b"mayor", b"diary"):
        assert private not in far.received


def test_a_private_question_is_answered_here_from_all_passages(opened: Opened) -> None:
    page, far = opened.page, opened.far
    connect(opened)
    count = len(far.prompts)
    assert "the alarm" in ask(page, "What is secret-1234 for?", near="It is for the alarm.")
    assert len(far.prompts) == count
    assert b"secret" not in far.received
    assert "secret-1234" in page.evaluate("() => window.requests.at(-1)")


def test_every_part_is_legible_and_large_enough_to_touch(opened: Opened) -> None:
    page = opened.page
    connect(opened)
    ask(page, "Where does Ana live?")
    require_legible(page, "documents", full_page=True)
    require_accessible(page)


def test_without_a_network_documents_stay_until_they_are_removed_and_pdfs_are_read(opened: Opened) -> None:
    page = opened.page
    page.click("#documents li:has-text('diary.txt') button[aria-label^=Remove]")
    page.wait_for_selector("#documents li >> nth=1", state="detached")
    page.wait_for_function(KEPT)
    page.context.set_offline(True)
    page.reload()
    page.wait_for_selector("body[data-state=ready]")
    assert page.locator("#documents .name").all_text_contents() == ["town.md"]
    add(page, {"crew.pdf": pdf_of(b"BT /F1 12 Tf 20 250 Td (Zoe mends sails.) Tj ET")})
    page.wait_for_selector("#documents li:has-text('crew.pdf')")
    assert ask(page, "Where does Zoe mend sails?", near="She mends sails [1].") == "She mends sails.1"
    assert page.text_content("#sources li.cited .passage") == "Zoe mends sails."
    # Chromium logs each request that finds no network.
    assert all(problem.startswith("Failed to load resource: net::ERR_") for problem in opened.problems)
    opened.problems.clear()
