"""/v1/audio/speech of another server, passed on; and what a server says that does not speak."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import openai
import pytest
import server_thread
from fake_models import FakeModels
from live_server import live_server
from waiting import WAIT_SECONDS

from nearfar.compiler.runtime.errors import DeviceError, RequestError
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.router.decision.policy import Policy
from nearfar.server_fallback.router.private_speaker import PrivateSpeaker
from nearfar.server_fallback.schema.speech import SpeechRequest
from nearfar.server_fallback.speech.remote_speaker import RemoteSpeaker
from nearfar.server_fallback.speech.speaker import Speech, open_speaker

REQUEST = SpeechRequest(model="kokoro", input="hello", voice="af_heart")


@dataclass
class Server:
    """``parts`` are sent one after the other, each when ``more`` is set; without an end if it ``breaks``."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "audio/mpeg"})
    parts: list[bytes] = field(default_factory=lambda: [b"one", b"two"])
    breaks: bool = False
    more: threading.Event = field(default_factory=threading.Event)
    received: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    url: str = ""


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.received.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            self.send_response(server.status)
            for name, value in server.headers.items():
                self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.send_header("Connection", "close")
            self.end_headers()
            with suppress(ConnectionError):  # The client may have left.
                self.send_parts()

        def send_parts(self) -> None:
            for index, part in enumerate(server.parts):
                if index and not server.more.wait(WAIT_SECONDS):
                    return
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                self.wfile.flush()
            if not server.breaks:
                self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}"
    with server_thread.serving(http):
        try:
            yield server
        finally:
            server.more.set()


@contextmanager
def client_of(config: ApiConfig) -> Iterator[openai.OpenAI]:
    with (
        live_server(FakeModels(), config) as served,
        openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def test_sound_is_passed_on_as_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEAKER_KEY", "k3y")
    with (
        serving(Server()) as there,
        client_of(ApiConfig(speaker=f"{there.url}/v1", speaker_api_key_env="SPEAKER_KEY")) as client,
        client.audio.speech.with_streaming_response.create(
            model="kokoro", voice="af_heart", input="hello", response_format="mp3", speed=1.5, instructions="gently"
        ) as answer,
    ):
        assert answer.headers["content-type"] == "audio/mpeg"
        parts = answer.iter_bytes()
        assert next(parts) == b"one"
        there.more.set()
        assert b"".join(parts) == b"two"
    [(path, headers, body)] = there.received
    assert path == "/v1/audio/speech"
    assert headers["authorization"] == "Bearer k3y"
    assert httpx.Response(200, content=body).json() == {
        "model": "kokoro",
        "voice": "af_heart",
        "input": "hello",
        "response_format": "mp3",
        "speed": 1.5,
        "instructions": "gently",
    }


@pytest.mark.parametrize(
    ("there", "error", "message"),
    [
        (Server(400, parts=[b'{"error": {"message": "no voice x", "param": "voice"}}']), "BadRequestError", "no voice"),
        (Server(429, parts=[b"{}"]), "RateLimitError", "status 429"),
        (Server(503, parts=[b"{}"]), "InternalServerError", "status 503"),
        (Server(401, parts=[b"{}"]), "InternalServerError", "rejects the configured API key.*--speaker-api-key-env"),
        (Server(headers={"Content-Type": "text/html"}), "InternalServerError", "'text/html', which is no sound"),
        (Server(parts=[], breaks=True), "InternalServerError", "the connection broke"),
        (Server(parts=[]), "InternalServerError", "ended its answer without a sound"),
    ],
    ids=["refused", "full", "not now", "key", "page", "broken", "empty"],
)
def test_failures_before_the_first_sound_are_typed_errors(there: Server, error: str, message: str) -> None:
    there.received.clear()
    with serving(there), client_of(ApiConfig(speaker=there.url)) as client:
        with pytest.raises(getattr(openai, error), match=message) as raised:
            client.audio.speech.create(model="kokoro", voice="x", input="hello")
        if error == "BadRequestError":
            assert raised.value.param == "voice"


def test_a_server_that_is_gone_is_named() -> None:
    with (
        client_of(ApiConfig(speaker="http://127.0.0.1:9")) as client,
        pytest.raises(openai.InternalServerError, match=r"127\.0\.0\.1:9: no connection could be made") as raised,
    ):
        client.audio.speech.create(model="kokoro", voice="x", input="hello")
    assert raised.value.status_code == 503


def test_a_later_failure_ends_the_connection_before_the_end() -> None:
    with serving(Server(breaks=True)) as there, client_of(ApiConfig(speaker=there.url)) as client:
        there.more.set()
        with pytest.raises(openai.APIConnectionError) as raised:
            client.audio.speech.create(model="kokoro", voice="x", input="hello")
    assert "incomplete chunked read" in str(raised.value.__cause__)


def test_sound_is_bounded() -> None:
    async def work(url: str) -> None:
        speaker = RemoteSpeaker(url, max_bytes=5)
        speech = await speaker.speak(REQUEST, Call("a"))
        with pytest.raises(DeviceError, match="of sound; send parts of the text"):
            _ = [part async for part in speech.parts]
        assert speaker._upstream.outstanding == 0
        await speaker.close()

    with serving(Server()) as there:
        there.more.set()
        asyncio.run(work(there.url))


def test_a_server_that_does_not_speak_says_how() -> None:
    with client_of(ApiConfig()) as client, pytest.raises(openai.NotFoundError, match="start it with --speaker espeak"):
        client.audio.speech.create(model="espeak", voice="en", input="hello")


@pytest.mark.parametrize(
    ("name", "variable", "message"),
    [
        ("festival", None, "--speaker festival: give espeak, or the URL of a server"),
        ("http://", None, "is not the URL of a server"),
        ("http://host", "UNSET_KEY", "--speaker-api-key-env UNSET_KEY: this environment variable is not set"),
        ("espeak", "SOME_KEY", "--speaker espeak needs no key"),
    ],
)
def test_wrong_speakers_are_refused_at_the_start(name: str, variable: str | None, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        open_speaker(name, variable, {})


def test_a_gateways_remote_speaker_gets_no_private_text() -> None:
    spoken = []

    class Here:
        is_remote = True

        async def speak(self, request: SpeechRequest, call: Call) -> Speech:  # noqa: ARG002
            spoken.append(request.input)
            return Speech("audio/wav", empty())

        async def close(self) -> None:
            spoken.append("closed")

    async def empty() -> Any:
        return
        yield

    async def work() -> None:
        policy = Policy.read({"version": 1, "mode": "prefer-near", "private": {"patterns": ["secret"]}})
        guarded = PrivateSpeaker(Here(), policy.private_check)
        await guarded.speak(REQUEST, Call("a"))
        for private in ({"input": "my secret"}, {"instructions": "like a secret"}, {"input": "my se\u200bcret"}):
            with pytest.raises(RequestError, match="matches a private pattern") as refused:
                await guarded.speak(REQUEST.model_copy(update=private), Call("a"))
            assert refused.value.details["code"] == "private"
        await guarded.close()

    asyncio.run(work())
    assert spoken == ["hello", "closed"]
