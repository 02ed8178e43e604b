"""Recordings in chats: a Whisper of the same server writes them down, and their texts take their places."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from asgi import run
from fake_models import FakeExecutor
from fastapi import FastAPI
from plain_target import compile_plain
from sounds import wav
from test_transcriptions import ModelsWithSpeech, speech_executor
from tiny_whisper import SHORT_CONTEXT, make_whisper

from nearfar.compiler.bundle.folder import Bundle
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.schema.chat import ChatCompletionRequest


def noise(seconds: float, channels: int = 1, rate: int = 16000) -> bytes:
    samples = np.random.default_rng(0).normal(0, 0.1, int(seconds * rate)).astype("<f4")
    return wav(np.repeat(samples, channels).tobytes(), 3, 32, channels=channels, rate=rate)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder: Path = tmp_path_factory.mktemp("recordings")
    (folder / "model").mkdir()
    make_whisper(folder / "model")
    return compile_plain(folder / "model", folder / "bundle", "f32", SHORT_CONTEXT)


@pytest.fixture
def executor() -> FakeExecutor:
    return FakeExecutor()


@pytest.fixture
def app(bundle: Bundle, executor: FakeExecutor) -> Iterator[FastAPI]:
    models = ModelsWithSpeech(executor, speech={"whisper": speech_executor(bundle)})
    yield create_app(models, ApiConfig(transcriber="whisper", max_body_bytes=64 << 20))
    run(models.speech["whisper"].close())


def sound(data: bytes | str) -> dict[str, Any]:
    text = data if isinstance(data, str) else base64.b64encode(data).decode()
    return {"type": "input_audio", "input_audio": {"data": text, "format": "wav"}}


def ask(app: FastAPI, *parts: dict[str, Any], **fields: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "what?"}]}]
            return await client.post(
                "/v1/chat/completions", json={"model": "fake", "messages": messages, **fields}, timeout=60
            )

    return run(send())


def prompted(executor: FakeExecutor) -> str:
    (request,) = executor.requests
    assert isinstance(request, ChatCompletionRequest)
    return str(request.messages[0].text)


@pytest.mark.parametrize(("channels", "rate"), [(1, 16000), (8, 44100)])
def test_a_transcript_takes_the_place_of_a_recording_and_is_reported(
    channels: int, rate: int, app: FastAPI, executor: FakeExecutor
) -> None:
    answer = ask(app, sound(noise(1.0, channels, rate)))
    assert answer.status_code == 200, answer.text
    (transcript,) = answer.json()["transcripts"]
    assert transcript["param"] == "messages[0].content[0]"
    assert transcript["seconds"] == pytest.approx(1.0, abs=0.01)
    assert transcript["text"]
    text = prompted(executor)
    assert text == f"[Transcript of a recording]\n{transcript['text']}\n[End of transcript]\nwhat?"


def test_a_stream_has_the_transcripts_in_its_first_chunk(app: FastAPI) -> None:
    lines = ask(app, sound(noise(0.5)), sound(noise(0.5)), stream=True).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert [len(chunk.get("transcripts", [])) for chunk in chunks] == [2, *[0] * (len(chunks) - 1)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("data:audio/wav;base64,AAAA", "send what follows the comma of the data: URL"),
        ("AAA", "messages[0].content[0].input_audio has data that is not base64"),
        (noise(1.0)[:20], "messages[0].content[0]: "),
        (b"", "messages[0].content[0]: is empty"),
        (noise(0), "messages[0].content[0]: has no samples"),
        (wav(np.full(160, np.nan, "<f4").tobytes(), 3, 32), "samples that are not finite numbers"),
        (wav(bytes(601 * 1000), 1, 8, rate=1000), "is longer than 600 seconds"),
        (bytes(25 * 2**20 + 1), "bytes; at most 26214400 are read"),
    ],
    ids=["data URL", "base64", "cut", "empty", "no samples", "NaN", "long", "large"],
)
def test_recordings_that_cannot_be_read_are_refused_by_name(
    data: bytes | str, message: str, app: FastAPI, executor: FakeExecutor
) -> None:
    answer = ask(app, sound(data))
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"].startswith("messages[0].content[0]")
    assert not executor.requests


def test_a_request_has_few_recordings(app: FastAPI) -> None:
    answer = ask(app, *[sound(noise(0.1))] * 5)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
    assert "5 sounds; send at most 4" in answer.text


def test_a_transcriber_that_transcribes_nothing_is_named(executor: FakeExecutor) -> None:
    app = create_app(ModelsWithSpeech(executor), ApiConfig(transcriber="fake"))
    answer = ask(app, sound(noise(0.1)))
    assert answer.status_code == 400
    assert "the transcriber fake transcribes no sound" in answer.text
