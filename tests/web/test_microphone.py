"""A stream as a microphone has one, in headless Chromium: it is recorded at the device's rate and read at 16 kHz."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import Browser, Page
from site_pages import script_page

from nearfar.compiler.browser.page_server import PAGE

# Records a tone of 440 Hz for the given milliseconds of sound, which take longer on a busy machine, or until an error.
RECORD = """async ([kind, ms]) => {
  const { readSound } = await import("./audio.js");
  const context = new AudioContext({ sampleRate: 44100 });
  await context.resume();
  const tone = new OscillatorNode(context, { frequency: 440 });
  const into = context.createMediaStreamDestination();
  tone.connect(into);
  tone.start();
  const [track] = into.stream.getTracks();
  const controller = new AbortController();
  const timer = setInterval(() => {
    if (context.currentTime * 1000 < ms) return;
    if (kind === "abort") controller.abort(new Error("enough"));
    else track.stop();
  }, 20);
  try {
    const { signal } = controller;
    const samples = await readSound(into.stream, { signal, maxSeconds: kind === "long" ? 0.2 : 60 });
    return Array.from(samples);
  } catch (error) {
    return [error.name, error.message];
  } finally {
    clearInterval(timer);
    await context.close();
  }
}"""


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    site = tmp_path_factory.mktemp("microphone")
    shutil.copy(PAGE.parent / "microphone_worklet.js", site)
    with script_page(browser, site, "audio.js", "() => null") as opened:
        # Pages play and record sound after a click only.
        opened.mouse.click(1, 1)
        yield opened


def test_a_stream_is_read_until_its_track_stops(page: Page) -> None:
    samples = np.array(page.evaluate(RECORD, ["stop", 2000]), np.float32)
    # A busy machine drops blocks, and the beginning and the end are silent.
    heard = samples[np.flatnonzero(np.abs(samples) > 0.05)[0] :][:8000]
    assert len(heard) == 8000, len(samples)
    spectrum = np.abs(np.fft.rfft(heard * np.hanning(len(heard))))
    assert spectrum.argmax() * 16_000 / len(heard) == pytest.approx(440, abs=4)


def test_a_recording_ends_with_the_signals_reason_and_at_its_longest(page: Page) -> None:
    assert page.evaluate(RECORD, ["abort", 300]) == ["Error", "enough"]
    name, message = page.evaluate(RECORD, ["long", 60_000])
    assert (name, "longer than 0.2 seconds" in message) == ("RequestError", True), message


@pytest.mark.parametrize(
    ("thrown", "reason"),
    [
        ("NotAllowedError", "microphone_denied"),
        ("NotFoundError", "no_microphone"),
        ("NotReadableError", "microphone_busy"),
        ("NotSupportedError", "no_microphone"),
    ],
)
def test_a_page_that_gets_no_microphone_says_why(page: Page, thrown: str, reason: str) -> None:
    found = page.evaluate(
        """async (name) => {
            const { openMicrophone } = await import("./audio.js");
            const { getUserMedia } = navigator.mediaDevices;
            navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException("", name));
            try {
                return await openMicrophone();
            } catch (error) {
                return [error.name, error.details.reason];
            } finally {
                navigator.mediaDevices.getUserMedia = getUserMedia;
            }
        }""",
        thrown,
    )
    assert found == ["DeviceError", reason]
