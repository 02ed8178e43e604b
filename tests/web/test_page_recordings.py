"""Recordings in the chat page: files of sound that are dropped, pasted or chosen, with a transcriber, with a model that
hears, and with neither.
"""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import numpy as np
import pytest
from chat_pages import open_page, send
from light_bundle import light_copy
from page_looks import fact, require_accessible, require_legible
from page_model import page_bundle
from page_whisper import page_listener, page_moonshine
from playwright.sync_api import Browser, Page
from sounds import chirp

from nearfar.compiler.browser.page_server import PageServer

SOUND = chirp(16_000)
FORMATS = {
    "mp3": ("mp3", "libmp3lame"),
    "ogg": ("ogg", "libopus"),
    "m4a": ("mp4", "aac"),
    "flac": ("flac", "flac"),
}
TRANSFER = """([base64, name, type]) => {
    const data = new DataTransfer();
    const bytes = Uint8Array.from(atob(base64), (byte) => byte.charCodeAt(0));
    data.items.add(new File([bytes], name, { type }));
    return data;
}"""
LARGE = """() => {
    const data = new DataTransfer();
    data.items.add(new File([new Uint8Array(25 * 2 ** 20 + 1)], "large.wav"));
    document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
}"""
PLAYS = """(count) => [...document.querySelectorAll("#attachments audio.sound")]
    .filter((each) => each.duration > 0.9 && each.duration < 1.3).length === count"""


def wav_file(samples: int) -> bytes:
    """The beginning of the sound as a WAV file that players open, too."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((1, 2, 16_000, samples, "NONE", ""))
        file.writeframes((SOUND[:samples] * 32767).astype("<i2").tobytes())
    return content.getvalue()


def encoded(form: str) -> bytes:
    """The sound at 48 kHz as a file of this form."""
    container, codec = FORMATS[form]
    content = io.BytesIO()
    samples = np.clip(np.repeat(SOUND, 3) * 32767, -32768, 32767).astype("<i2")
    with av.open(content, "w", format=container) as file:
        stream = file.add_stream(codec, rate=48_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = 48_000
        file.mux([*stream.encode(frame), *stream.encode(None)])
    return content.getvalue()


@contextmanager
def chat_page(browser: Browser, bundle: Path, transcriber: Path | None = None) -> Iterator[Page]:
    """The page has no problem."""
    problems: list[str] = []
    page = open_page(browser, problems)
    with PageServer(bundle, transcriber=transcriber) as server:
        page.goto(server.url if transcriber is None else server.chat_url)
        page.wait_for_selector("body[data-near=ready]")
        for field, value in (("max-tokens", "8"), ("temperature", "0")):
            page.eval_on_selector(f"#{field}", "(input, value) => { input.value = value; }", value)
        yield page
        page.context.close()
    assert problems == []


def drop(page: Page, content: bytes, name: str, kind: str = "") -> None:
    transfer = page.evaluate_handle(TRANSFER, [base64.b64encode(content).decode(), name, kind])
    page.dispatch_event("body", "drop", {"dataTransfer": transfer})


def paste(page: Page, content: bytes, name: str, kind: str = "") -> None:
    transfer = page.evaluate_handle(TRANSFER, [base64.b64encode(content).decode(), name, kind])
    page.evaluate("(data) => document.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data }))", transfer)


@pytest.fixture
def model(tmp_path: Path, chromium: str) -> Path:  # noqa: ARG001
    return light_copy(page_bundle(), tmp_path / "model")


@pytest.mark.exhaustive
def test_a_recording_is_a_message_s_sound_which_a_transcriber_writes_down(
    browser: Browser, model: Path, tmp_path: Path
) -> None:
    with chat_page(browser, model, page_moonshine()) as page:
        (tmp_path / "chosen.wav").write_bytes(wav_file(16_000))
        page.set_input_files("#attach-file", tmp_path / "chosen.wav")
        page.wait_for_selector("#attachments audio.sound[aria-label='chosen.wav']")
        drop(page, encoded("mp3"), "dropped.mp3", "audio/mpeg")
        page.wait_for_selector("#attachments audio.sound[aria-label='dropped.mp3']")
        paste(page, encoded("ogg"), "pasted.ogg", "video/ogg")
        page.wait_for_selector("#attachments audio.sound[aria-label='pasted.ogg']")
        # Some browsers know no type of these names.
        drop(page, encoded("flac"), "dropped.flac")
        drop(page, encoded("m4a"), "dropped.m4a")
        page.wait_for_function(PLAYS, arg=5)
        require_legible(page, "recordings-typed")
        for _ in range(4):
            page.click("#attachments .chip:last-child button")
        send(page, "what did she say?")
        page.wait_for_selector(".answer:is([data-state=done], :has(.problem))")
        assert page.locator(".answer .problem").all_text_contents() == []
        written = "1 recording, 1 of them transcribed now on this device by tiny-moonshine in "
        assert fact(page, 0, "Recordings").startswith(written)
        assert fact(page, 0, "Heard").startswith("“")
        page.click(".answer .ran summary")
        require_legible(page, "recordings-heard")
        require_accessible(page)
        page.click(".regenerate")
        page.wait_for_selector(".answer[data-state=done]")
        # It was written down before.
        assert fact(page, 0, "Recordings") == "1 recording, transcribed before on this device by tiny-moonshine"
        # The page that is loaded next shows the conversation again.
        page.reload()
        page.wait_for_function("() => document.querySelector('.question audio.sound')?.duration > 0.9")


@pytest.mark.exhaustive
def test_a_file_that_is_no_sound_is_refused_by_name(browser: Browser, model: Path) -> None:
    with chat_page(browser, model, page_moonshine()) as page:
        for content, name, words in (
            (b"no sound", "a.mp3", "a.mp3 is no sound in a format that this browser reads"),
            (wav_file(0), "empty.wav", "empty.wav has no samples; send another recording"),
        ):
            drop(page, content, name)
            page.wait_for_selector(f"#attachment-problem:has-text('{words}')")
        page.evaluate(LARGE)
        page.wait_for_selector("#attachment-problem:has-text('large.wav has'):has-text('a recording may have at most')")
        assert not page.is_visible("#attachments .chip")


# test_chat_page.py has a recording that nothing hears.
# test_page_hearing.py has a model that hears, and test_pictures.py files that are dropped and pasted.
@pytest.mark.exhaustive
def test_a_model_that_hears_reads_a_recording_itself(browser: Browser, chromium: str, tmp_path: Path) -> None:  # noqa: ARG001
    with chat_page(browser, light_copy(page_listener(), tmp_path / "bundle")) as page:
        drop(page, wav_file(32 * 90), "talk.wav", "audio/wav")
        page.wait_for_selector("#attachments audio.sound[aria-label='talk.wav']")
        send(page, "what?")
        page.wait_for_selector(".answer[data-state=done]")
        assert page.locator(".answer .problem").all_text_contents() == []
        assert fact(page, 0, "Recordings") == "1 recording, heard by the model on this device"
