"""Transcripts of tiny Moonshines with random weights in headless Chromium: the tokens and times are those of Python's
runner, for a clip of any length and for a long sound, which is cut at a quiet place.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
from page_whisper import page_moonshine, page_moonshine_streaming
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

# Pages read them as the Whisper of test_transcripts_page.py; targets/test_moonshine.py has their kernels, and
# web/test/audio rows of sound that grows.
pytestmark = pytest.mark.exhaustive


def long_sound() -> FloatArray:
    samples = chirp(31 * 16_000)
    samples[24 * 16_000 : 25 * 16_000] *= 0.001
    return samples


SOUNDS: dict[str, FloatArray] = {"short": chirp(700), "clip": chirp(20_001), "long": long_sound()}


@pytest.fixture(scope="module", params=["streaming", "moonshine"])
def bundle(request: pytest.FixtureRequest) -> Bundle:
    return open_bundle(page_moonshine() if request.param == "moonshine" else page_moonshine_streaming())


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


@pytest.fixture(scope="module")
def python(bundle: Bundle) -> Transcriber:
    tokenizer = Tokenizer(TokenizerFiles.at(bundle.path / bundle.manifest.tokenizer.file))
    return Transcriber(ReferenceRunner(bundle, limits=LIMITS, activation="float32"), tokenizer)


def file_of(sound: str) -> str:
    return base64.b64encode(wav(SOUNDS[sound].astype("<f4").tobytes(), 3, 32)).decode()


@pytest.mark.parametrize("sound", ["short", "clip", "long"])
def test_transcripts_are_those_of_python(page: Page, python: Transcriber, sound: str) -> None:
    assert page.evaluate("() => engine.info.selfTest.state") == "passed"
    found = page.evaluate("(asked) => transcribe(...asked)", [file_of(sound), {"temperature": 0, "timestamps": True}])
    reference = verbose_json(python.transcribe(SOUNDS[sound], TranscriptionOptions(temperature=0.0)))
    assert [each["tokens"] for each in found["segments"]] == [each["tokens"] for each in reference["segments"]]
    assert len(found["segments"]) == (2 if sound == "long" else 1)
    for own, other in zip(found.pop("segments"), reference.pop("segments"), strict=True):
        for key in ("avg_logprob", "compression_ratio", "no_speech_prob"):
            assert own.pop(key) == pytest.approx(other.pop(key), abs=NEAR)
        assert own == other
    assert found == reference


def test_sound_that_grows_has_the_transcripts_of_whole_clips(page: Page, bundle: Bundle) -> None:
    """Of each part a streaming model reads only the rows that change; a sound of another beginning in between is read
    whole.
    """
    tokenizer = Tokenizer(TokenizerFiles.at(bundle.path / bundle.manifest.tokenizer.file))
    runner = ReferenceRunner(bundle, limits=LIMITS, activation="float32")
    sound = chirp(16_000)
    for samples in (sound[:9_000], sound[:13_001], -sound[:14_000]):
        file = base64.b64encode(wav(samples.astype("<f4").tobytes(), 3, 32)).decode()
        found = page.evaluate("(file) => transcribe(file, { temperature: 0 })", file)
        # A new one reads the whole clip.
        whole = Transcriber(runner, tokenizer).transcribe(samples, TranscriptionOptions(temperature=0.0))
        assert [each["tokens"] for each in found["segments"]] == [list(each.tokens) for each in whole.segments]
        assert found["text"] == whole.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{ language: 'en' }", "language 'en' is not known to the model; it knows one language, so leave it out"),
        ("{ task: 'translate' }", "the model does not translate"),
        ("{ prompt: 'names' }", "has no token for a text that precedes"),
    ],
)
def test_what_the_family_lacks_is_refused_by_name(page: Page, options: str, message: str) -> None:
    name, text = page.evaluate(f"(file) => refusal(transcribe(file, {options}))", file_of("short"))
    assert (name, message in text) == ("RequestError", True), text
