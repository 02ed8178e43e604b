"""eSpeak NG's voices, through the server and OpenAI's client."""

from __future__ import annotations

import asyncio
import io
import threading
import time
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from fake_models import FakeModels
from live_server import live_server
from waiting import WAIT_SECONDS

from nearfar.compiler.runtime.audio.sound import read_sound
from nearfar.compiler.runtime.errors import NearfarError, QueueFull, RequestError
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.schema.speech import SpeechRequest
from nearfar.server_fallback.speech import espeak_speaker
from nearfar.server_fallback.speech.espeak_speaker import MOST_CHARACTERS, EspeakSpeaker, parts_of
from nearfar.server_fallback.speech.espeak_worker import voice_file

pytest.importorskip("espeakng_loader", reason="pip install 'nearfar[espeak]'")
TEXT = "A quick brown fox jumps over the lazy dog. It sleeps."


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with (
        live_server(FakeModels(), ApiConfig(speaker="espeak")) as served,
        openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="none", max_retries=0) as opened,
    ):
        yield opened


def seconds(data: bytes) -> float:
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24000, 1, 2)
        assert len(file.readframes(1 << 30)) == 2 * file.getnframes()
        return float(file.getnframes() / file.getframerate())


def test_openais_client_gets_wav_and_pcm(client: openai.OpenAI) -> None:
    answer = client.audio.speech.create(model="espeak", voice="en", input=TEXT, response_format="wav")
    assert answer.response.headers["content-type"] == "audio/wav"
    whole = answer.read()
    # Spoken English has about 15 characters a second.
    assert 2 < seconds(whole) < 6
    with client.audio.speech.with_streaming_response.create(
        model="espeak", voice="en", input=TEXT, response_format="pcm"
    ) as streamed:
        assert streamed.headers["content-type"] == "audio/pcm"
        pcm = b"".join(streamed.iter_bytes())
    # Espeak's noise is another one each time.
    assert len(pcm) == pytest.approx(len(whole), rel=0.02)
    samples = np.frombuffer(pcm, "<i2") / 2.0**15
    # It is speech: loud parts and pauses.
    loudness = np.abs(samples[: len(samples) // 2400 * 2400].reshape(-1, 2400)).max(1)
    assert loudness.max() > 0.2
    assert loudness.min() < 0.1 * loudness.max()
    # Our own reader of recordings accepts it.
    assert len(read_sound(whole, "speech")) == pytest.approx(16000 * seconds(whole), abs=2)


def test_speed_and_voice_change_the_sound(client: openai.OpenAI) -> None:
    def spoken(**options: object) -> bytes:
        given: dict[str, Any] = {"model": "espeak", "voice": "en", "input": TEXT, "response_format": "wav", **options}
        return bytes(client.audio.speech.create(**given).read())

    plain = spoken()
    assert seconds(spoken(speed=2)) == pytest.approx(seconds(plain) / 2, rel=0.15)
    assert seconds(spoken(speed=4)) < seconds(plain) / 3
    assert seconds(spoken(speed=0.5)) > 1.7 * seconds(plain)
    # The pitch of f3 is that of a woman.
    assert pitch(spoken(voice="en+f3")) > 1.3 * pitch(plain) > 100


def pitch(data: bytes) -> float:
    """The frequency at which the spectrum of the samples is repeated best, in Hz."""
    samples = np.frombuffer(data[44:], "<i2").astype(np.float64)
    repeated = np.fft.irfft(np.abs(np.fft.rfft(samples, 2 * len(samples))) ** 2)
    shortest = 24000 // 260
    return 24000 / (shortest + int(repeated[shortest : 24000 // 70].argmax()))


@dataclass
class Voices:
    voices: dict[str, str]
    variants: frozenset[str] = frozenset(("f3",))


def test_a_voice_is_a_language_and_perhaps_a_variant() -> None:
    known: Any = Voices({"de": "gmw/de", "en": "gmw/en", "en-us": "gmw/en-US"})
    # Codes of browsers name regions that espeak does not know.
    expected = {
        "de": "gmw/de",
        "de-AT": "gmw/de",
        "en_US": "gmw/en-US",
        "en-GB-oxendict": "gmw/en",
        "de+f3": "gmw/de+f3",
    }
    assert {voice: voice_file(known, voice) for voice in expected} == expected
    for wrong in ("", "alloy", "../de", "de+../f3", "gmw/de"):
        with pytest.raises(RequestError, match="is not known"):
            voice_file(known, wrong)


@pytest.mark.parametrize(
    ("options", "param", "message"),
    [
        ({"voice": "alloy"}, "voice", "the voice 'alloy' is not known; voices of espeak are languages: af, am,"),
        ({"voice": "en+nobody"}, "voice", "the variant 'nobody' of the voice is not known; known: Alex"),
        ({"response_format": "mp3"}, "response_format", "espeak does not write mp3; supported: wav, pcm"),
        ({"speed": 0.3}, "speed", "speeds from 0.46 to 4, not 0.3"),
        ({"speed": 5}, "speed", "less than or equal to 4"),
        ({"instructions": "sadly"}, "instructions", "follows no instructions"),
        ({"stream_format": "sse"}, "stream_format", "sends no events"),
        ({"input": ""}, "input", "at least 1 character"),
        ({"input": "a" * 4097}, "input", "at most 4096 characters"),
    ],
)
def test_what_espeak_does_not_do_is_refused_by_name(
    options: dict[str, object], param: str, message: str, client: openai.OpenAI
) -> None:
    given: dict[str, Any] = {"model": "espeak", "voice": "en", "input": "a", "response_format": "wav", **options}
    with pytest.raises(openai.BadRequestError, match=message) as refused:
        client.audio.speech.create(**given)
    assert refused.value.param == param


def test_another_model_is_a_404(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'tts-1' does not speak here; use 'espeak'"):
        client.audio.speech.create(model="tts-1", voice="en", input="a", response_format="wav")


@pytest.mark.parametrize("text", ["...", "\0", "<speak>a</speak>", "[[h@'loU]]", "你好", "\u2028", "🦊" * 50])
def test_any_text_is_a_sound(text: str, client: openai.OpenAI) -> None:
    answer = client.audio.speech.create(model="espeak", voice="en", input=text, response_format="wav")
    assert seconds(answer.read()) > 0


def test_markup_and_phonemes_are_text(client: openai.OpenAI) -> None:
    def spoken(text: str) -> float:
        return seconds(client.audio.speech.create(model="espeak", voice="en", input=text, response_format="wav").read())

    assert spoken('<break time="9s"/>a') < 5
    assert spoken("[[h@loU]]") > spoken("hello")


def test_a_long_text_arrives_in_parts_and_delays_no_other_request(client: openai.OpenAI) -> None:
    url = str(client.base_url)
    body = {"model": "espeak", "voice": "en", "input": TEXT * 70, "response_format": "pcm"}
    started = time.monotonic()
    first = threading.Event()
    slowest = 0.0

    def long() -> tuple[float, float]:
        with httpx.stream("POST", f"{url}audio/speech", json=body, timeout=WAIT_SECONDS) as response:
            parts = response.iter_bytes()
            next(parts)
            arrived = time.monotonic() - started
            first.set()
            assert sum(map(len, parts)) > 60 * 48000
            return arrived, time.monotonic() - started

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(long)
        assert first.wait(WAIT_SECONDS)
        while not running.done():
            before = time.monotonic()
            assert httpx.get(f"{url}models", timeout=WAIT_SECONDS).status_code == 200
            slowest = max(slowest, time.monotonic() - before)
        arrived, ended = running.result()
    # One part of about thirty.
    assert arrived < ended / 2
    assert slowest < ended


def test_sound_beyond_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(espeak_speaker, "MAX_SECONDS", 5)

    async def spoken(text: str) -> int:
        speaker = EspeakSpeaker()
        try:
            request = SpeechRequest(model="espeak", voice="en", input=text, response_format="pcm")
            return sum([len(part) async for part in (await speaker.speak(request, Call("a"))).parts])
        finally:
            await speaker.close()

    assert asyncio.run(spoken(TEXT)) < 5 * 48000
    with pytest.raises(RequestError, match=r"takes more than .* seconds to speak; send parts of it"):
        asyncio.run(spoken(TEXT * 8))


def test_the_memory_of_sounds_is_bounded_and_half_of_it_is_for_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of two texts. One alone takes a quarter.
    monkeypatch.setattr(espeak_speaker, "HELD_BYTES", 4 * 300_000)
    request = SpeechRequest(model="espeak", voice="en", input=TEXT, response_format="wav")

    async def spoken(speaker: EspeakSpeaker, client: str, form: str = "wav") -> int:
        asked = request.model_copy(update={"response_format": form})
        return sum([len(part) async for part in (await speaker.speak(asked, Call("a", client=client))).parts])

    async def work() -> None:
        speaker = EspeakSpeaker()
        try:
            assert 150_000 < await spoken(speaker, "one") < 300_000
            speaker._held["one"] = 500_000
            with pytest.raises(QueueFull, match="take too much memory; try again later"):
                await spoken(speaker, "one")
            assert speaker._held == {"one": 500_000}
            assert await spoken(speaker, "one", "pcm") > 150_000
            assert await spoken(speaker, "other") > 150_000
            speaker._held["third"] = 600_000
            with pytest.raises(QueueFull):
                await spoken(speaker, "other")
        finally:
            await speaker.close()

    asyncio.run(work())


def test_a_process_that_is_killed_is_started_again() -> None:
    async def work() -> None:
        speaker = EspeakSpeaker()
        request = SpeechRequest(model="espeak", voice="en", input=TEXT, response_format="pcm")

        async def spoken() -> int:
            return sum([len(part) async for part in (await speaker.speak(request, Call("a"))).parts])

        try:
            size = await spoken()
            process = speaker._process._process
            assert process is not None
            process.kill()
            process.wait()
            try:
                again = await spoken()
            except NearfarError:
                again = await spoken()
            assert again == pytest.approx(size, rel=0.02)
        finally:
            await speaker.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    "text", [TEXT, TEXT * 70, "a" * 4096, "a b " * 1000, "日本語。" * 500, "line\n" * 500, "a. " * 1300, " " * 3000]
)
def test_parts_join_to_the_text_and_are_bounded(text: str) -> None:
    parts = list(parts_of(text))
    assert "".join(parts) == text
    assert all(0 < len(part) <= MOST_CHARACTERS for part in parts)
    if text == TEXT * 70:
        assert all(part.endswith((". ", ".")) for part in parts)
