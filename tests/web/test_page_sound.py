"""Reading sound in headless Chromium, on the page and in a worker: its frames are those of Python, or near them."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page
from site_pages import script_page
from sounds import chirp, wav
from tolerances import F32, relative_error

from nearfar.compiler.runtime.audio.log_mel import log_mel
from nearfar.compiler.runtime.audio.sound import read_sound
from nearfar.compiler.runtime.batch import FloatArray

# base64 -> the samples and their frames, or the error.
READ = """async (text) => {
  const { readSound, logMel } = await import("./audio.js");
  const blob = await (await fetch(`data:application/octet-stream;base64,${text}`)).blob();
  try {
    const samples = await readSound(blob);
    return { length: samples.length, frames: Array.from(logMel(samples, 80).data) };
  } catch (error) {
    return { error: error.name, message: error.message };
  }
}"""
# Means of differences between numbers from -1.5 to 2, of the bands up to 7 kHz: our filter for other rates and soxr's;
# and those of Chromium, which also scales positive samples of 16 bits by another factor than negative ones.
OUR_FILTER, OTHER_FILTER = 1e-4, 0.01
BANDS = 75


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with script_page(browser, tmp_path_factory.mktemp("sound"), "audio.js", READ) as page:
        yield page


def read(page: Page, data: bytes) -> Any:
    return page.evaluate(READ, base64.b64encode(data).decode())


def frames_of(found: Any) -> FloatArray:
    assert "frames" in found, found
    return np.array(found["frames"], np.float32).reshape(80, -1)


def encoded(samples: FloatArray, form: str, rate: int) -> bytes:
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=form)
    return file.getvalue()


def test_wav_files_have_the_frames_of_python(page: Page) -> None:
    samples = chirp(40_000)
    data = wav(samples.astype("<f4").tobytes(), 3, 32)
    assert relative_error(frames_of(read(page, data)), log_mel(read_sound(data, "a"), 80)) < F32


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "MP3"])
def test_other_rates_and_formats_have_frames_near_those_of_python(page: Page, form: str) -> None:
    pytest.importorskip("soxr")
    rate = 44_100
    seconds = np.arange(3 * rate) / rate
    noise = np.random.default_rng(1).normal(size=len(seconds))
    samples = (0.2 * np.sin(2 * np.pi * (200 + 300 * seconds) * seconds) + 0.05 * noise).astype(np.float32)
    data = encoded(np.stack([samples, 0.5 * samples], axis=1), form, rate)
    found, expected = frames_of(read(page, data)), log_mel(read_sound(data, "a"), 80)
    assert abs(found.shape[1] - expected.shape[1]) <= 8
    frames = min(found.shape[1], expected.shape[1])
    difference = np.abs(found[:BANDS, 2 : frames - 8] - expected[:BANDS, 2 : frames - 8])
    assert difference.mean() < (OUR_FILTER if form == "WAV" else OTHER_FILTER)


def test_a_file_that_is_no_sound_is_refused(page: Page) -> None:
    found = read(page, b"hello, this is no sound at all")
    assert found["error"] == "RequestError"
    assert "is no sound in a format that this browser reads" in found["message"]


def test_a_worker_reads_wav_files_and_refuses_others_with_what_to_do(page: Page) -> None:
    ask = """(text) => new Promise((resolve) => {
      const worker = new Worker("./worker.js");
      worker.onmessage = ({ data }) => resolve(data);
      worker.postMessage(text);
    })"""
    data = wav(chirp(40_000).astype("<f4").tobytes(), 3, 32)
    found = frames_of(page.evaluate(ask, base64.b64encode(data).decode()))
    assert relative_error(found, log_mel(read_sound(data, "a"), 80)) < F32
    refused = page.evaluate(ask, base64.b64encode(encoded(chirp(16_000), "FLAC", 16_000)).decode())
    assert refused["error"] == "DeviceError"
    assert "decodeAudioData" in refused["message"]
