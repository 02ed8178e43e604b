"""Transcripts as the events of a stream, as OpenAI's client reads them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from live_server import live_server
from openai.types.audio import TranscriptionTextDeltaEvent, TranscriptionTextDoneEvent
from plain_target import compile_plain
from sounds import wav
from test_transcriptions import ModelsWithSpeech, speech_executor
from tiny_moonshine import make_moonshine
from tiny_parakeet import make_parakeet
from tiny_whisper import SHORT_CONTEXT, make_whisper
from waiting import WAIT_SECONDS, wait_until

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.executors.speech_executor import SpeechExecutor


def noise(seconds: int) -> bytes:
    return wav(np.random.default_rng(0).normal(0, 0.1, 16000 * seconds).astype("<f4").tobytes(), 3, 32)


def make_short_moonshine(folder: Path) -> None:
    make_moonshine(folder, seed=2, scale=0.2)


def make_short_parakeet(folder: Path) -> None:
    make_parakeet(folder, num_mel_bins=80)


MAKERS: dict[str, Callable[[Path], Any]] = {
    "whisper": make_whisper,
    "moonshine": make_short_moonshine,
    "parakeet": make_short_parakeet,
}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    folder = tmp_path_factory.mktemp("speech")
    found = {}
    for name, make in MAKERS.items():
        (folder / name).mkdir()
        make(folder / name)
        found[name] = compile_plain(folder / name, folder / f"{name}-bundle", "f32", SHORT_CONTEXT)
    return found


@dataclass
class Served:
    client: openai.OpenAI
    models: ModelsWithSpeech
    url: str

    @property
    def whisper(self) -> SpeechExecutor:
        return self.models.speech["whisper"]

    def stream(self, **parameters: Any) -> openai.Stream[Any]:
        # At temperature 0, the default, a model with random weights writes the text of each window six times.
        parameters = {"model": "whisper", "file": ("noise.wav", noise(3)), "temperature": 0.2, **parameters}
        stream: openai.Stream[Any] = self.client.audio.transcriptions.create(**parameters, stream=True)
        return stream


@contextmanager
def serving(bundles: dict[str, Bundle]) -> Iterator[Served]:
    models = ModelsWithSpeech(speech={name: speech_executor(bundle) for name, bundle in bundles.items()})
    with live_server(models, ApiConfig()) as live:
        url = f"http://127.0.0.1:{live.port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=WAIT_SECONDS) as client:
            yield Served(client, models, url)


@pytest.fixture(scope="module")
def served(bundles: dict[str, Bundle]) -> Iterator[Served]:
    with serving(bundles) as found:
        yield found


def before_window(
    executor: SpeechExecutor, patch: pytest.MonkeyPatch, number: int, act: Callable[[], None]
) -> list[int]:
    """Call ``act`` on the thread of the model before it reads the window of this number. Returns the windows read."""
    read, listen = list[int](), executor._runner.listen

    def listening(batch: Any) -> Any:
        if len(read) == number:
            act()
        read.append(len(read))
        return listen(batch)

    patch.setattr(executor._runner, "listen", listening)
    return read


@pytest.mark.parametrize(
    ("model", "response_format"), [("whisper", "json"), ("moonshine", "text"), ("parakeet", "json")]
)
def test_openai_s_client_reads_the_text_of_each_window(served: Served, model: str, response_format: str) -> None:
    # Several windows, and of a Parakeet several segments, of up to 15 s.
    sound = ("noise.wav", noise(3 if model == "whisper" else 40))
    # Parakeet has none.
    temperature = openai.NOT_GIVEN if model == "parakeet" else 0.2
    whole = served.client.audio.transcriptions.create(model=model, file=sound, temperature=temperature)
    *deltas, done = served.stream(model=model, file=sound, response_format=response_format, temperature=temperature)
    assert len(deltas) > 1
    assert all(isinstance(each, TranscriptionTextDeltaEvent) and each.delta for each in deltas)
    assert isinstance(done, TranscriptionTextDoneEvent)
    assert "".join(each.delta for each in deltas) == done.text == whole.text != ""
    assert whole.usage is not None
    # The client's class knows only usage in tokens.
    assert done.usage is not None
    assert {"type": done.usage.type, **(done.usage.model_extra or {})} == whole.usage.model_dump()


def test_a_text_is_sent_before_the_next_window_is_read(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    received, in_time = threading.Event(), list[bool]()
    before_window(served.whisper, monkeypatch, 1, lambda: in_time.append(received.wait(WAIT_SECONDS)))
    for event in served.stream():
        assert event.type in ("transcript.text.delta", "transcript.text.done")
        received.set()
    assert in_time == [True]


def test_a_client_that_hangs_up_ends_its_transcript(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    left = threading.Event()
    read = before_window(served.whisper, monkeypatch, 1, lambda: check(left.wait(WAIT_SECONDS)))
    stream = served.stream(file=("long.wav", noise(300)))
    assert next(stream).type == "transcript.text.delta"
    stream.close()
    assert served.whisper.state().running == 1
    left.set()
    wait_until(lambda: served.whisper.state().running == 0)
    # There are some 300 of them.
    assert len(read) < 100
    assert list(served.stream(file=("short.wav", noise(1))))[-1].type == "transcript.text.done"


def check(found: bool) -> None:
    assert found


@pytest.mark.parametrize("number", [0, 1])
def test_an_error_is_a_status_before_the_first_text_and_an_event_after_it(
    served: Served, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail() -> None:
        raise DeviceError("the device was lost")

    read = before_window(served.whisper, monkeypatch, number, fail)
    texts = list[str]()
    with pytest.raises(openai.APIError, match="the device was lost") as caught:
        texts.extend(event.delta for event in served.stream())
    assert len(texts) == len(read) == number
    assert isinstance(caught.value, openai.InternalServerError) == (number == 0)
    assert (caught.value.type, caught.value.code) == ("server_error", "device_error")
    # The next transcript is complete.
    monkeypatch.undo()
    assert list(served.stream())[-1].type == "transcript.text.done"


def test_a_model_that_is_unloaded_ends_a_stream_with_an_error(
    bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({"whisper": bundles["whisper"]}) as served:
        before_window(served.whisper, monkeypatch, 1, served.whisper._closed.set)
        types = list[str]()
        with pytest.raises(openai.APIError, match="the model was unloaded") as caught:
            types.extend(event.type for event in served.stream())
        assert types == ["transcript.text.delta"]
        assert caught.value.type == "server_error"


@pytest.mark.parametrize(
    ("path", "fields", "param", "message"),
    [
        ("transcriptions", {"response_format": "srt"}, "response_format", "'srt' is not streamed; use 'json' or"),
        ("transcriptions", {"response_format": "vtt"}, "response_format", "'vtt' is not streamed"),
        ("transcriptions", {"response_format": "verbose_json"}, "response_format", "leave 'stream' out"),
        ("transcriptions", {"timestamp_granularities[]": "segment"}, "timestamp_granularities", "have no times"),
        ("transcriptions", {"include[]": "logprobs"}, "include", "Unknown parameter"),
        ("transcriptions", {"language": "klingon"}, None, "language 'klingon' is not known"),
        ("transcriptions", {"stream": "yes"}, "stream", "stream"),
        ("translations", {}, "stream", "translations are not streamed"),
    ],
)
def test_what_streams_do_not_have_is_refused(
    served: Served, path: str, fields: dict[str, str], param: str | None, message: str
) -> None:
    data = {"model": "whisper", "stream": "true", **fields}
    files = {"file": ("a.wav", noise(1))}
    answer = httpx.post(f"{served.url}/audio/{path}", data=data, files=files, timeout=WAIT_SECONDS)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert message in error["message"]
    assert error["param"] == param


def test_events_are_those_of_openai_s_api(served: Served) -> None:
    files, data = {"file": ("a.wav", noise(2))}, {"model": "whisper", "stream": "true", "temperature": "0.2"}
    answer = httpx.post(f"{served.url}/audio/transcriptions", data=data, files=files, timeout=WAIT_SECONDS)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.startswith('data: {"type":"transcript.text.delta","delta":"')
    last = answer.text.rstrip("\n").split("\n\n")[-1]
    assert last.startswith('data: {"type":"transcript.text.done","text":"')
    assert last.endswith('"usage":{"type":"duration","seconds":2}}')
