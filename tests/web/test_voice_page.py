"""The voice page: a tiny Whisper hears what a test's microphone sends, scripted answers are spoken by a stand-in for
the browser's voices or by a server, and who speaks meanwhile stops them.

`make test-all` keeps pictures in build/screenshots.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from chat_pages import open_page, script
from light_bundle import light_copy
from page_looks import DESK, require_accessible, require_legible, resize
from page_model import page_bundle
from page_whisper import page_whisper
from playwright.sync_api import Browser, Page
from server_thread import serving
from sounds import chirp, wav
from voice_stand_ins import STAND_INS, let_sound

from nearfar.compiler.browser.page_server import PageServer

# The tiny Whisper writes letters; the page shows these words instead.
HEARS = """(texts) => {
    const { transcribe } = window.nearfarTranscriber;
    window.nearfarTranscriber.transcribe = async (sound, options) => {
        const found = await transcribe(sound, { ...options, language: "en", temperature: 0 });
        window.heardSeconds = sound.samples.length / 16000;
        return { ...found, text: options.temperature === 0 ? "why is" : texts.shift() ?? "" };
    };
}"""


class Speech:
    """A server with /v1/audio/speech that keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        speech = self
        sound = wav(chirp(4_800).astype("<f4").tobytes(), 3, 32).replace(b"LIST\x03\0\0\0abc\0", b"")

        class Handler(BaseHTTPRequestHandler):
            def do_OPTIONS(self) -> None:
                self._reply(b"")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/audio/speech":
                    speech.asked.append(json.loads(body))
                self._reply(sound)

            def _reply(self, body: bytes) -> None:
                self.send_response(200)
                for name in ("Origin", "Headers", "Methods"):
                    self.send_header(f"Access-Control-Allow-{name}", "*")
                self.send_header("Content-Type", "audio/wav")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture(scope="module")
def speech() -> Iterator[Speech]:
    speech = Speech()
    with serving(speech.server):
        yield speech


@pytest.fixture(scope="module")
def loaded(browser: Browser, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:  # noqa: ARG001
    folder = tmp_path_factory.mktemp("voice")
    model, whisper = light_copy(page_bundle(), folder / "model"), light_copy(page_whisper(), folder / "whisper")
    problems: list[str] = []
    page = open_page(browser, problems, STAND_INS)
    with PageServer(model, transcriber=whisper) as server:
        page.goto(server.voice_url)
        page.wait_for_selector("body[data-state=ready]")
        yield page
        page.context.close()
    assert problems == []


@pytest.fixture
def page(loaded: Page) -> Iterator[Page]:
    """The page, in a conversation that begins."""
    resize(loaded, DESK)
    loaded.evaluate("() => { window.spoken.length = 0; window.cancelled = 0; }")
    loaded.click("#toggle")
    state(loaded, "listening")
    # The detector learns how quiet the room is.
    let_sound(loaded, 0.5)
    yield loaded
    loaded.click("#toggle")
    state(loaded, "off")


def state(page: Page, name: str) -> None:
    page.wait_for_selector(f"#toggle[data-state={name}]")


def say(page: Page, seconds: float) -> None:
    page.evaluate("() => talk(true)")
    state(page, "hearing")
    let_sound(page, seconds)
    page.evaluate("() => talk(false)")


def test_what_is_said_is_answered_from_the_first_sentence_on(page: Page) -> None:
    page.evaluate(HEARS, ["why is the sky blue"])
    script(page, "Because light ", "scatters. ", "Blue ", "most.")
    turns = page.locator(".timings").count()
    page.evaluate("() => talk(true)")
    # While it is said.
    page.wait_for_selector(".said:not([data-final]):text-is('why is')")
    page.evaluate("() => talk(false)")
    state(page, "speaking")
    assert page.evaluate("() => spoken") == ["Because light scatters."]
    assert page.text_content(".said[data-final] >> nth=0") == "why is the sky blue"
    assert page.evaluate("() => heardSeconds") > 1
    page.evaluate("() => finish()")
    page.wait_for_function("() => spoken.length === 2")
    page.evaluate("() => finish()")
    state(page, "listening")
    page.wait_for_function("(count) => document.querySelectorAll('.timings').length > count", arg=turns)
    timings = page.text_content(".timings >> nth=0") or ""
    assert timings.startswith("First sound after ")
    for part in ("silence ", "transcript ", "first words ", "voice ", "Answered on this device."):
        assert part in timings


@pytest.mark.exhaustive
def test_who_speaks_stops_the_answer(page: Page) -> None:
    page.evaluate(HEARS, ["count", "never mind"])
    script(page, "One. ", "Two. ", "Three. ")
    say(page, 0.5)
    state(page, "speaking")
    say(page, 0.5)
    page.wait_for_function("() => cancelled === 1")
    page.wait_for_selector(".timings:text-matches('interrupted')")
    state(page, "speaking")
    asked = page.evaluate("() => requests.at(-1).map(({ role, content }) => [role, content])")
    assert asked[-3:] == [["user", "count"], ["assistant", "One."], ["user", "never mind"]]
    page.click("#interrupt")
    state(page, "listening")


@pytest.mark.exhaustive
def test_a_server_speaks(page: Page, speech: Speech) -> None:
    page.evaluate(HEARS, ["hello", "hello"])
    script(page, "Hello to you. ", "How are you?")
    page.click("#open-panel")
    page.select_option("#speaker", "far")
    page.fill("#speech-url", f"http://127.0.0.1:{speech.server.server_port}")
    page.keyboard.press("Escape")
    turns = page.locator(".timings").count()
    say(page, 0.5)
    # The server's sounds are short, so the page speaks only for a moment.
    page.wait_for_function("(count) => document.querySelectorAll('.timings').length > count", arg=turns)
    state(page, "listening")
    assert speech.asked == [
        {"model": "kokoro", "input": text, "voice": "af_heart", "response_format": "wav"}
        for text in ("Hello to you.", "How are you?")
    ]
    page.click("#open-panel")
    page.select_option("#speaker", "browser")
    page.keyboard.press("Escape")


# The chat, documents and transcripts pages, whose styles these are, are looked at in every run.
@pytest.mark.exhaustive
def test_the_page_reads_well_in_light_and_dark_on_a_desk_and_a_phone(page: Page) -> None:
    page.evaluate(HEARS, ["why is the sky blue, and why is the evening red?"])
    script(page, "Because air scatters blue light more than red light. ", "In the evening, little blue is left.")
    say(page, 0.4)
    state(page, "speaking")
    page.evaluate("() => finish()")
    page.wait_for_function("() => spoken.length === 2")
    require_legible(page, "voice", full_page=True)
    require_accessible(page)
    page.evaluate("() => finish()")
    state(page, "listening")
