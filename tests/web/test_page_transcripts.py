"""Transcripts of a tiny Whisper with random weights in headless Chromium: the tokens are those of Python's runner."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from page_whisper import page_whisper
from playwright.sync_api import Browser, Page
from site_pages import engine_page
from sounds import chirp, wav
from transcript_page import HTML, NEAR, START, WORKER

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.runtime.audio.formats import verbose_json
from nearfar.compiler.runtime.audio.transcribe import LIMITS, Transcriber, TranscriptionOptions
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles

# A window has a second.
SOUNDS: dict[str, FloatArray] = {
    "short": chirp(9_000),
    "window": chirp(16_000),
    "long": chirp(42_000),
    "silence": np.zeros(5_000, np.float32),
}
CASES: list[tuple[str, dict[str, Any], TranscriptionOptions]] = [
    ("short", {"language": "de"}, TranscriptionOptions(language="de", temperature=0.0)),
    ("window", {"timestamps": True}, TranscriptionOptions(timestamps=True, temperature=0.0)),
    ("long", {}, TranscriptionOptions(temperature=0.0)),
    ("silence", {"language": "en"}, TranscriptionOptions(language="en", temperature=0.0)),
    (
        "long",
        {"language": "yue", "task": "translate", "prompt": "a name"},
        TranscriptionOptions(language="yue", translate=True, prompt="a name", temperature=0.0),
    ),
]


# test_transcripts_page.py compares a file with Python; web/test/audio has windows, temperatures and refusals, and
# web/test/worker streams.
pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return open_bundle(page_whisper())


@pytest.fixture(scope="module")
def page(
    browser: Browser,
    bundle: Bundle,
    chromium: str,  # noqa: ARG001
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Page]:
    files = {"index.html": HTML, "start.js": START, "engine_worker.js": WORKER}
    scripts = ("nearfar.js", "audio.js", "client.js", "worker.js")
    with engine_page(browser, bundle, tmp_path_factory.mktemp("site"), scripts, files) as opened:
        yield opened


def file_of(sound: str) -> str:
    return base64.b64encode(wav(SOUNDS[sound].astype("<f4").tobytes(), 3, 32)).decode()


@pytest.fixture(scope="module")
def python(bundle: Bundle) -> Transcriber:
    tokenizer = Tokenizer(TokenizerFiles.at(bundle.path / bundle.manifest.tokenizer.file))
    return Transcriber(ReferenceRunner(bundle, limits=LIMITS, activation="float32"), tokenizer)


@pytest.mark.parametrize(
    ("sound", "options", "expected"),
    CASES,
)
def test_transcripts_are_those_of_python(
    page: Page, python: Transcriber, sound: str, options: dict[str, Any], expected: TranscriptionOptions
) -> None:
    found = page.evaluate("(asked) => transcribe(...asked)", [file_of(sound), {"temperature": 0, **options}])
    reference = verbose_json(python.transcribe(SOUNDS[sound], expected))
    assert [each["tokens"] for each in found["segments"]] == [each["tokens"] for each in reference["segments"]]
    for own, other in zip(found.pop("segments"), reference.pop("segments"), strict=True):
        for key in ("avg_logprob", "compression_ratio", "no_speech_prob"):
            assert own.pop(key) == pytest.approx(other.pop(key), abs=NEAR)
        assert own == other
    assert found == reference


def test_a_stream_yields_the_segments_of_the_transcript(page: Page, python: Transcriber) -> None:
    segments, end = page.evaluate("(asked) => streamed(...asked)", [file_of("long"), {"temperature": 0}])
    reference = python.transcribe(SOUNDS["long"], TranscriptionOptions(temperature=0.0))
    assert [each["tokens"] for each in segments] == [list(each.tokens) for each in reference.segments]
    assert len(segments) > 1
    assert end["segments"] == segments


def test_an_engine_in_a_worker_streams_the_same_transcript(page: Page, python: Transcriber) -> None:
    segments, end = page.evaluate("(file) => inWorker(file)", file_of("long"))
    reference = python.transcribe(SOUNDS["long"], TranscriptionOptions(temperature=0.0))
    assert [each["tokens"] for each in segments] == [list(each.tokens) for each in reference.segments]
    assert end["segments"] == segments


def test_the_model_has_passed_its_self_test_and_is_loaded_again_after_unload(page: Page) -> None:
    ask = "([file, options]) => transcribe(file, options)"
    before = page.evaluate(ask, [file_of("short"), {"temperature": 0}])
    assert page.evaluate("() => [engine.info.selfTest.state, engine.unload()]") == ["passed", True]
    assert page.evaluate(ask, [file_of("short"), {"temperature": 0}]) == before


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ("transcribe(file, { language: 'fr' })", "language 'fr' is not known to the model; known: de, en, yue"),
        ("transcribe(file, { lang: 'de' })", "'lang' is not supported"),
        ("transcribe(file, { task: 'summarize' })", "task is"),
        ("transcribe(file, { maxSeconds: 0.1 })", "longer than 0.1 seconds"),
        ("engine.transcribe({ samples: new Float32Array(), sampleRate: 16000 })", "has no samples"),
        ("engine.generate('hello', { raw: true }).next()", "generates no text"),
    ],
)
def test_what_is_wrong_is_refused_by_name(page: Page, work: str, message: str) -> None:
    name, text = page.evaluate(f"(file) => refusal({work})", file_of("short"))
    assert (name, message in text) == ("RequestError", True), text


def test_a_transcript_ends_with_the_signals_reason(page: Page) -> None:
    found = page.evaluate(
        """async (file) => {
            const controller = new AbortController();
            const stream = await engine.transcribe(await (await fetch(
                `data:application/octet-stream;base64,${file}`)).blob(),
                { stream: true, temperature: 0, signal: controller.signal });
            const first = await stream.next();
            controller.abort(new Error("enough"));
            return [first.done, (await refusal(stream.next()))[1]];
        }""",
        file_of("long"),
    )
    assert found == [False, "enough"]
