"""Transcripts of a tiny Parakeet with random weights in headless Chromium: the words are those of Python's runner."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from page_whisper import page_parakeet
from playwright.sync_api import Browser, Page
from site_pages import engine_page
from sounds import chirp, wav

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.runtime.audio.ctc import CtcTranscriber
from nearfar.compiler.runtime.audio.transcribe import TranscriptionOptions
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

HTML = '<!doctype html><body><script type="module" src="start.js"></script>'
START = """import { Engine } from "./nearfar.js";
const fileOf = async (text) => (await fetch(`data:application/octet-stream;base64,${text}`)).blob();
window.transcribe = async (text, options) => {
    const stream = await engine.transcribe(await fileOf(text), { ...options, stream: true });
    const segments = [];
    for (;;) {
        const { done, value } = await stream.next();
        if (done) return [segments, value];
        segments.push(value);
    }
};
window.refusal = (work) => work.then(() => null, (error) => [error.name, error.message]);
Object.assign(window, { Engine });
document.body.dataset.state = "ready";
"""
SAMPLES = chirp(60_000)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return open_bundle(page_parakeet())


@pytest.fixture(scope="module")
def page(
    browser: Browser,
    bundle: Bundle,
    chromium: str,  # noqa: ARG001
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Page]:
    files = {"index.html": HTML, "start.js": START}
    scripts = ("nearfar.js", "audio.js", "encoders.js")
    with engine_page(browser, bundle, tmp_path_factory.mktemp("site"), scripts, files) as opened:
        yield opened


def file_of(samples: Any) -> str:
    return base64.b64encode(wav(samples.astype("<f4").tobytes(), 3, 32)).decode()


# web/test/shared/ctc.test.ts and web/test/audio have words, frames and windows, targets/test_parakeet.py the kernels.
@pytest.mark.exhaustive
def test_words_of_long_sound_are_those_of_python(page: Page, bundle: Bundle) -> None:
    segments, whole = page.evaluate("(text) => transcribe(text, {})", file_of(SAMPLES))
    runner = ReferenceRunner(bundle, activation="float32")
    python = CtcTranscriber(runner, Tokenizer(bundle.tokenizer_files())).transcribe(SAMPLES, TranscriptionOptions())
    assert segments == whole["segments"]
    assert whole["text"] == python.text != ""
    assert (whole["task"], whole["language"], whole["duration"]) == ("transcribe", None, python.duration)
    for own, other in zip(segments, python.segments, strict=True):
        assert own["tokens"] == list(other.tokens)
        assert (own["seek"], own["start"], own["end"]) == (other.seek, other.start, other.end)
        assert [tuple(word.values()) for word in own["words"]] == [(w.word, w.start, w.end) for w in other.words]
        assert own["avg_logprob"] == pytest.approx(other.avg_logprob, abs=1e-3)
        assert own["compression_ratio"] == pytest.approx(other.compression_ratio, abs=1e-3)


@pytest.mark.exhaustive
def test_the_test_of_the_bundle_has_run_and_what_it_does_not_do_is_refused(page: Page) -> None:
    assert page.evaluate("engine.info.selfTest.state") == "passed"
    for options, message in (
        ({"language": "en"}, "takes no language"),
        ({"task": "translate"}, "does not translate"),
        ({"prompt": "a name"}, "continues no text"),
        ({"temperature": 0.5}, "chooses the likeliest"),
    ):
        found = page.evaluate("(asked) => refusal(transcribe(...asked))", [file_of(SAMPLES[:4000]), options])
        assert found[0] == "RequestError"
        assert message in found[1]
    refused = page.evaluate("refusal(engine.chat.completions.create({ messages: [{ role: 'user', content: 'Hi' }] }))")
    assert refused[0] == "RequestError"
