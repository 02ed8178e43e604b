"""Transcripts of sound over HTTP, as OpenAI's client and curl request them."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from asgi import run
from fake_models import CREATED, FakeExecutor, FakeModels
from fastapi import FastAPI
from live_server import live_server
from plain_target import compile_plain
from sounds import wav
from tiny_moonshine import make_moonshine
from tiny_parakeet import make_parakeet
from tiny_whisper import SHORT_CONTEXT, make_whisper
from waiting import until

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.ir.speech import LanguageToken
from nearfar.compiler.runtime.audio.transcribe import LIMITS
from nearfar.compiler.runtime.errors import DeadlineExceeded, QueueFull, RequestError, Unavailable
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.errors import ApiError
from nearfar.server_fallback.api.form_body import boundary_of, parse_form
from nearfar.server_fallback.executors.executor import Abilities, Call, ExecutorState, Recording
from nearfar.server_fallback.executors.speech_executor import SpeechExecutor
from nearfar.server_fallback.executors.text_model import TextModel
from nearfar.server_fallback.schema.chat import ChatCompletionRequest, SoundPart, TextPart
from nearfar.server_fallback.schema.models import ModelCard
from nearfar.server_fallback.schema.transcription import TranscriptionRequest

NOISE = wav(np.random.default_rng(0).normal(0, 0.1, 32000).astype("<f4").tobytes(), 3, 32)


@dataclass
class ModelsWithSpeech(FakeModels):
    speech: dict[str, SpeechExecutor] = field(default_factory=dict)

    def cards(self) -> Sequence[ModelCard]:
        return [*super().cards(), *(ModelCard(id=name, created=CREATED, root=name) for name in self.speech)]

    def states(self) -> Mapping[str, ExecutorState]:
        return {**super().states(), **{name: one.state() for name, one in self.speech.items()}}

    async def executor(self, name: str) -> FakeExecutor | SpeechExecutor:  # type: ignore[override]
        return self.speech[name] if name in self.speech else await super().executor(name)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder: Path = tmp_path_factory.mktemp("speech")
    (folder / "model").mkdir()
    make_whisper(folder / "model")
    return compile_plain(folder / "model", folder / "bundle", "f32", SHORT_CONTEXT)


def speech_executor(bundle: Bundle, *, max_waiting: int = 4) -> SpeechExecutor:
    runner = ReferenceRunner(bundle, limits=LIMITS, activation="float32")
    return SpeechExecutor(runner, TextModel.of(bundle, "whisper"), max_waiting=max_waiting)


@pytest.fixture(scope="module")
def models(bundle: Bundle) -> ModelsWithSpeech:
    speech = bundle.manifest.speech
    assert speech is not None
    english = replace(speech, languages=(LanguageToken("en", None),), transcribe=None, translate=None)
    other = replace(bundle, manifest=bundle.manifest.model_copy(update={"speech": english}))
    return ModelsWithSpeech(speech={"whisper": speech_executor(bundle), "english": speech_executor(other)})


@pytest.fixture(scope="module")
def url(models: ModelsWithSpeech) -> Iterator[str]:
    with live_server(models, ApiConfig()) as served:
        yield f"http://127.0.0.1:{served.port}"


@pytest.fixture(scope="module")
def app(models: ModelsWithSpeech) -> FastAPI:
    return create_app(models, ApiConfig(max_audio_bytes=1 << 20))


def post(app: FastAPI, path: str = "transcriptions", *, file: bytes | None = NOISE, **fields: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            files = {"file": ("a.wav", file)} if file is not None else {"other": ("b", b"")}
            return await client.post(f"/v1/audio/{path}", data={"model": "whisper", **fields}, files=files)

    return run(send())


def test_a_model_without_languages_and_timestamps_transcribes(tmp_path: Path) -> None:
    make_moonshine(tmp_path / "model", seed=2, scale=0.2)
    executor = speech_executor(compile_plain(tmp_path / "model", tmp_path / "bundle", "f32", SHORT_CONTEXT))
    app = create_app(ModelsWithSpeech(speech={"whisper": executor}), ApiConfig())
    found = post(app, response_format="verbose_json", temperature="0").json()
    (segment,) = found["segments"]
    assert (segment["start"], segment["end"], found["text"]) == (0, 2, segment["text"].strip())
    assert found["text"] != ""
    assert "00:00:00,000 --> 00:00:02,000" in post(app, response_format="srt", temperature="0").text
    cases: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("transcriptions", {"language": "en"}, "it knows one language, so leave it out"),
        ("transcriptions", {"prompt": "names"}, "has no token for a text that precedes"),
        ("translations", {}, "does not translate"),
    )
    for path, fields, message in cases:
        refused = post(app, path, **fields)
        assert (refused.status_code, message in refused.text) == (400, True), refused.text


def test_a_model_that_only_knows_english_accepts_that_language(app: FastAPI) -> None:
    short = wav(np.zeros(4000, "<f4").tobytes(), 3, 32)
    asked: dict[str, Any] = {"model": "english", "file": short, "response_format": "verbose_json", "temperature": "0"}
    found = post(app, **asked).json()
    assert found == post(app, language="en", **asked).json()
    assert found["language"] == "en"
    for path, language, message in (
        ("transcriptions", "de", "language 'de' is not known to the model; known: en"),
        ("translations", "en", "does not translate"),
    ):
        refused = post(app, path, model="english", file=short, language=language)
        assert (refused.status_code, message in refused.text) == (400, True), refused.text


def test_openai_s_client_transcribes(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        sound = ("noise.wav", NOISE)
        verbose = client.audio.transcriptions.create(
            model="whisper",
            file=sound,
            response_format="verbose_json",
            language="en",
            timestamp_granularities=["segment"],
            temperature=0.2,
        )
        assert verbose.segments is not None
        assert len(verbose.segments) > 1
        assert (verbose.language, float(verbose.duration)) == ("en", 2.0)
        plain = client.audio.transcriptions.create(model="whisper", file=sound, language="en", temperature=0.2)
        assert plain.text == verbose.text != ""
        assert plain.usage is not None
        assert plain.usage.type == "duration"
        assert plain.usage.seconds == 2
        subtitles = client.audio.transcriptions.create(
            model="whisper", file=sound, response_format="srt", language="en", temperature=0.2
        )
        assert str(subtitles).count("-->") == len(verbose.segments)
        # The client no longer recommends it.
        with pytest.warns(DeprecationWarning, match="deprecated"):
            translated = client.audio.translations.create(model="whisper", file=sound, temperature=0.2)
        assert translated.text
        with pytest.raises(openai.BadRequestError, match="language 'fr' is not known to the model; known: de, en, yue"):
            client.audio.transcriptions.create(model="whisper", file=sound, language="fr")


def test_each_format_has_its_type(app: FastAPI) -> None:
    types = {"json": "application/json", "text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}
    for form, kind in types.items():
        # At temperature 0, the default, a model with random weights writes the text of each window six times.
        answer = post(app, response_format=form, temperature="0.2")
        assert answer.status_code == 200
        assert answer.headers["content-type"].partition(";")[0] == kind
        assert answer.text.startswith("WEBVTT") == (form == "vtt")
    assert post(app, "translations", response_format="verbose_json", temperature="0.2").json()["task"] == "translate"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"model": "fake"},
            "model",
            "this model neither transcribes sound nor hears; use one that does, such as Whisper",
        ),
        ({"language": "klingon"}, None, "language 'klingon' is not known"),
        ({"temperature": "2"}, "temperature", "less than or equal to 1"),
        ({"temperature": "warm"}, "temperature", "valid number"),
        ({"response_format": "docx"}, "response_format", "'json', 'text', 'srt', 'verbose_json' or 'vtt'"),
        ({"timestamp_granularities[]": ["word"]}, "timestamp_granularities", "when each word"),
        ({"timestamp_granularities[]": ["letter"]}, "timestamp_granularities[0]", "'segment'"),
        ({"stream": "yes"}, "stream", "stream"),
        ({"chunking_strategy": "auto"}, "chunking_strategy", "Unknown parameter"),
        ({"file": b"no sound"}, None, "a.wav: is no sound in a known format"),
        ({"file": None}, "file", "Missing required parameter: 'file'"),
    ],
)
def test_what_cannot_be_transcribed_is_refused(
    app: FastAPI, fields: dict[str, Any], param: str | None, message: str
) -> None:
    answer = post(app, **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert message in error["message"]
    assert error["param"] == param


def test_a_model_that_knows_when_words_are_said_answers_with_their_times(tmp_path: Path) -> None:
    make_parakeet(tmp_path, num_mel_bins=80)
    bundle = compile_plain(tmp_path, tmp_path / "bundle", "f32", SHORT_CONTEXT)
    app = create_app(ModelsWithSpeech(speech={"whisper": speech_executor(bundle)}), ApiConfig())
    words: dict[str, Any] = {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]}
    answer = post(app, **words).json()
    assert " ".join(word["word"] for word in answer["words"]) == answer["text"] != ""
    assert 0 <= answer["words"][0]["start"] < answer["words"][-1]["end"] <= answer["duration"] + 0.08
    assert "words" not in post(app, response_format="verbose_json").json()
    assert post(app, response_format="srt").text.startswith("1\n00:00:0")
    for refused, param in ((post(app, language="en"), "language"), (post(app, prompt="Hi"), "prompt")):
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


class HearingExecutor(FakeExecutor):
    """A model that hears at most a second at once."""

    def abilities(self) -> Abilities:
        return Abilities(None, None, tools=False, embeds=False, hears=True, hears_seconds=1.0)


def test_a_model_that_hears_in_chats_transcribes_and_translates() -> None:
    spoken = HearingExecutor(pieces=("Guten\n", "Tag.", "\nEnglish: ", "Good day."))
    app = create_app(FakeModels(loaded={"ears": spoken}), ApiConfig())
    found = post(app, "translations", model="ears", response_format="verbose_json").json()
    # Of two seconds, the model hears one at once; each part ends at a quiet place.
    count = len(found["segments"])
    assert count >= 2
    assert (found["task"], found["text"]) == ("translate", " ".join(["Good day."] * count))
    assert [each["start"] for each in found["segments"][1:]] == [each["end"] for each in found["segments"][:-1]]
    assert all(each["end"] - each["start"] <= 1 for each in found["segments"])
    assert len(spoken.requests) == count
    chat = spoken.requests[0]
    assert isinstance(chat, ChatCompletionRequest)
    (message,) = chat.messages
    assert isinstance(message.content, list)
    sound, text = message.content
    assert isinstance(sound, SoundPart)
    assert base64.b64decode(sound.input_audio.data)[:4] == b"RIFF"
    assert isinstance(text, TextPart)
    assert "then translate it into English" in text.text
    assert (chat.temperature, chat.max_completion_tokens) == (0, 1024)
    subtitles = post(app, model="ears", response_format="srt", language="de").text
    assert subtitles.count("Guten Tag. English: Good day.") == subtitles.count("-->") == count
    streamed = post(app, model="ears", stream="true").text
    assert streamed.count("transcript.text.delta") == count
    refusals: tuple[tuple[dict[str, Any], str, str], ...] = (
        ({"timestamp_granularities[]": ["word"]}, "timestamp_granularities", "when each word is said"),
        ({"prompt": "names"}, "prompt", "continues no text that precedes"),
        ({"temperature": "0.5"}, "temperature", "the likeliest tokens"),
        ({"language": "tlh"}, "language", "language 'tlh' is not known; give a code of ISO 639-1"),
    )
    for fields, param, message_text in refusals:
        answer = post(app, model="ears", **fields)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], message_text in error["message"]) == (400, param, True), error
    spoken.error = RequestError("the context is too short", param="messages")
    error = post(app, model="ears").json()["error"]
    assert (error["param"], error["message"]) == ("file", "a chat with a part of the sound: the context is too short")
    silent = create_app(FakeModels(loaded={"ears": HearingExecutor(pieces=("  ",))}), ApiConfig())
    assert post(silent, model="ears", response_format="verbose_json").json()["segments"] == []


def test_a_large_form_and_another_type_are_refused(app: FastAPI) -> None:
    assert post(app, file=bytes(2 << 20)).status_code == 413

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.post("/v1/audio/transcriptions", json={"model": "whisper"})

    answer = run(send())
    assert answer.status_code == 415
    assert "send multipart/form-data" in answer.json()["error"]["message"]


def test_a_lenient_server_names_what_it_ignores(models: ModelsWithSpeech) -> None:
    answer = post(create_app(models, ApiConfig(lenient=True)), chunking_strategy="auto", temperature="0.2")
    assert answer.status_code == 200
    assert "chunking_strategy" in answer.headers["x-nearfar-ignored"]


def test_chats_with_a_model_of_sound_are_refused(app: FastAPI) -> None:
    async def send(path: str, body: dict[str, Any]) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.post(path, json={"model": "whisper", **body})

    chat = run(send("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}))
    assert chat.status_code == 400
    assert "send a file to /v1/audio/transcriptions" in chat.json()["error"]["message"]
    assert run(send("/v1/embeddings", {"input": "hi"})).status_code == 400
    assert run(send("/tokenize", {"prompt": "hi"})).json()["count"] == 2


def test_a_caller_that_leaves_ends_its_transcript_and_the_next_one_begins(bundle: Bundle) -> None:
    """The queue is bounded, deadlines count, and closing ends what runs."""
    hour = wav(np.random.default_rng(1).normal(0, 0.1, 16000 * 300).astype("<f4").tobytes(), 3, 32)
    request = TranscriptionRequest(model="whisper", language="en", temperature=0.2)

    async def scenario() -> None:
        executor = speech_executor(bundle, max_waiting=1)

        def transcribe(data: bytes, deadline: float | None = None) -> asyncio.Task[Any]:
            call = Call("1", deadline=deadline)
            return asyncio.create_task(executor.transcribe(Recording(data, "a"), request, call))

        running, waiting = transcribe(hour), transcribe(NOISE)
        await until(lambda: (executor.state().running, executor.state().waiting) == (1, 1))
        with pytest.raises(QueueFull, match="1 requests are waiting"):
            await transcribe(NOISE)
        running.cancel()
        assert (await waiting).text
        assert executor.state().running == 0
        with pytest.raises(DeadlineExceeded, match="longer than the request allows"):
            await transcribe(hour, time.monotonic() + 0.2)
        with pytest.raises(RequestError, match="a: is empty"):
            await transcribe(b"")
        last = transcribe(hour)
        await until(lambda: executor.state().running == 1)
        await executor.close()
        with pytest.raises(Unavailable, match="was unloaded"):
            await last
        with pytest.raises(Unavailable, match="is being unloaded"):
            await transcribe(NOISE)
        assert not executor.state().ready

    run(scenario())


FORM = (
    b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
    b'--x\r\ncontent-disposition: form-data; name="file"; filename="a \\"b\\".wav"\r\nContent-Type: audio/wav\r\n\r\n'
    b"1\r\n2--x\r\n"
    b'--x\r\nContent-Disposition: form-data; name="t[]"\r\n\r\na\r\n'
    b'--x\r\nContent-Disposition: form-data; name="t[]"\r\n\r\nb\r\n--x--\r\n'
)


def test_a_form_is_read() -> None:
    form = parse_form(FORM, b"x")
    assert form.texts == {"model": "m", "t": ["a", "b"]}
    assert form.file == b"1\r\n2--x"
    assert form.file_name == 'a \\"b\\".wav'
    assert boundary_of('multipart/form-data; charset=utf-8; boundary="a b"') == b"a b"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (FORM[:-20], "cut off"),
        (b"", "cut off"),
        (b"--x--\r\n", "Missing required parameter: 'file'"),
        (FORM.replace(b'name="model"', b'title="model"'), "has no name"),
        (FORM.replace(b'name="t[]"', b'name="model"', 1), "has 'model' twice"),
        (FORM.replace(b'name="model"', b'name="file"'), "two files"),
        (FORM.replace(b"\r\n\r\nm\r\n", b"\r\n\r\n\xff\r\n"), "'model' is not UTF-8"),
        (FORM.replace(b"\r\n\r\nm\r\n", b"\r\n\r\n" + bytes(70000) + b"\r\n"), "'model' has 70,000 bytes"),
        (b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * 65 + b"--x--", "65 parts"),
    ],
)
def test_a_body_that_is_no_form_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_form(body, b"x")
    assert message in caught.value.message
    assert caught.value.status == 400
