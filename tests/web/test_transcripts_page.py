"""The transcripts page with a tiny Whisper of random weights: files, a recording, times that light up, and subtitles.

`make test-all` keeps pictures in build/screenshots.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_pages import click_and_see, open_page
from light_bundle import light_copy
from page_looks import DESK, require_accessible, require_legible, resize
from page_model import page_bundle
from page_whisper import page_parakeet, page_whisper
from playwright.sync_api import Browser, Page
from sounds import chirp, wav

from nearfar.compiler.browser.page_server import PageServer
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.runtime.audio.formats import write_transcript
from nearfar.compiler.runtime.audio.transcribe import LIMITS, Transcriber, Transcript, TranscriptionOptions
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles

# A window of the model has a second.
SOUND = chirp(42_000)
# At other temperatures, texts are drawn.
AT_ZERO = """() => {
    const { transcribe } = window.nearfarTranscriber;
    window.nearfarTranscriber.transcribe = (sound, options) => transcribe(sound, { ...options, temperature: 0 });
}"""
SEEK = """(seconds) => {
    const player = document.querySelector("#player");
    player.pause();
    player.currentTime = seconds;
}"""
LIT = """(index) => JSON.stringify([...document.querySelectorAll(".segment")].flatMap(
    (segment, at) => segment.ariaCurrent === null ? [] : [at])) === `[${index}]`"""


@pytest.fixture(scope="module")
def loaded(browser: Browser, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:  # noqa: ARG001
    problems: list[str] = []
    whisper = light_copy(page_whisper(), tmp_path_factory.mktemp("transcripts") / "whisper")
    page = open_page(browser, problems)
    with PageServer(whisper, transcriber=whisper) as server:
        page.goto(server.transcripts_url)
        page.wait_for_selector("body[data-state=ready]")
        page.evaluate(AT_ZERO)
        yield page
        page.context.close()
    assert problems == []


@pytest.fixture
def page(loaded: Page) -> Page:
    resize(loaded, DESK)
    return loaded


@pytest.fixture(scope="module")
def python() -> Transcript:
    bundle = open_bundle(page_whisper())
    tokenizer = Tokenizer(TokenizerFiles.at(bundle.path / bundle.manifest.tokenizer.file))
    transcriber = Transcriber(ReferenceRunner(bundle, limits=LIMITS, activation="float32"), tokenizer)
    return transcriber.transcribe(SOUND, TranscriptionOptions(language="de", timestamps=True, temperature=0.0))


def add(page: Page, name: str, data: bytes) -> None:
    page.set_input_files("#file", {"name": name, "mimeType": "audio/wav", "buffer": data})


def transcribed(page: Page, name: str) -> None:
    page.wait_for_selector(f"#transcript[data-state=done] #name:text-is('{name}')")


def test_a_file_becomes_the_text_of_python_whose_times_light_up_on_a_readable_page(
    page: Page, python: Transcript
) -> None:
    page.select_option("#language", label="German")
    add(page, "talk.wav", wav(SOUND.astype("<f4").tobytes(), 3, 32))
    transcribed(page, "talk.wav")
    assert page.locator(".segment .words").all_text_contents() == [one.text.strip() for one in python.segments]
    facts = page.text_content("#facts") or ""
    assert "0:02 of German, transcribed in" in facts
    assert "swiftshader" in facts.lower()
    # Chromium does not play this file, which has an odd chunk, so the page plays its samples.
    page.wait_for_function("() => document.querySelector('#player').duration > 2.6")
    page.locator(".segment >> nth=3").click()
    page.wait_for_selector(".segment[aria-current]")
    assert page.evaluate("() => document.querySelector('#player').currentTime") >= python.segments[3].start
    for index in (4, 0):
        middle = (python.segments[index].start + python.segments[index].end) / 2
        page.evaluate(SEEK, middle)
        page.wait_for_function(LIT, arg=index)
    with page.expect_download() as download:
        page.click("[data-format=srt]")
    assert download.value.suggested_filename == "talk.srt"
    assert download.value.path().read_text() == write_transcript(python, "srt")
    click_and_see(page, "#copy", "Copied")
    assert page.evaluate("() => navigator.clipboard.readText()").split("\n")[0] == python.segments[0].text.strip()
    page.evaluate(SEEK, 1.3)
    require_legible(page, "transcripts")
    require_accessible(page)


# test_microphone.py and test_voice_page.py read the microphone.
@pytest.mark.exhaustive
def test_what_the_microphone_hears_is_transcribed_and_can_be_played(page: Page) -> None:
    page.click("#record")
    page.wait_for_selector("#record-words:text-matches('Stop · 0:0[1-9]')")
    assert page.is_visible("#level")
    page.click("#record")
    transcribed(page, "Recording")
    assert page.evaluate("() => document.querySelector('#player').duration") >= 1
    assert page.text_content("#record-words") == "Record"


def test_a_file_without_sound_is_refused_with_what_to_do(page: Page) -> None:
    add(page, "letter.txt", b"hello, this is no sound at all")
    page.wait_for_selector("#transcript[data-state=failed]")
    assert "is no sound in a format that this browser reads" in (page.text_content("#problem .what") or "")
    assert page.text_content("#problem .fix") == "convert it to WAV"


@pytest.mark.exhaustive
def test_what_is_said_to_the_chat_becomes_its_message(browser: Browser, chromium: str, tmp_path: Path) -> None:  # noqa: ARG001
    model, hearing = light_copy(page_bundle(), tmp_path / "model"), light_copy(page_parakeet(), tmp_path / "hearing")
    problems: list[str] = []
    page = open_page(browser, problems)
    with PageServer(model, transcriber=hearing) as server:
        page.goto(server.chat_url)
        page.wait_for_selector("body[data-state=ready]")
        # This model sees nothing.
        assert not page.is_visible("#camera")
        page.fill("#prompt", "I say")
        page.click("#dictate")
        page.wait_for_selector("#dictate[data-state=recording]")
        page.wait_for_selector("#dictation:text-matches('Listening · [1-9]')")
        page.click("#dictate")
        page.wait_for_selector("#dictation:text-matches('transcribed on this device by tiny-parakeet in')")
        assert page.input_value("#prompt").startswith("I say ")
        assert page.is_enabled("#send")
        page.click("#dictate")
        page.wait_for_selector("#dictate[data-state=recording]")
        require_legible(page, "dictation")
        page.goto(server.url)
        page.wait_for_selector("body[data-state=ready]")
        assert not page.is_visible("#dictate")
        page.context.close()
    assert problems == []
