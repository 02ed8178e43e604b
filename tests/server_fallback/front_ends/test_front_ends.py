"""`nearfar serve --front-ends 2` as real processes: models, limits and metrics are those of one server."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from light_bundle import few_kernels, one_compilation
from served_demo import compile_for_server, require_found, serving
from sounds import wav
from tiny_whisper import SHORT_CONTEXT, make_whisper
from waiting import WAIT_SECONDS, wait_until
from websockets.sync.client import connect

from nearfar.compiler.bundle.signature import new_key
from nearfar.compiler.cli import main
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.server_fallback.executors.devices import default_arch
from nearfar.server_fallback.receipts.signing import is_signed
from nearfar.server_fallback.schema.receipt import SignedReceipt

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and needs Linux' SO_REUSEPORT")

SPEAKS = find_spec("espeakng_loader") is not None
QUESTION = "what is 27 + 58?"
ANSWER = "27 + 58 = 85"
# About 60 tokens.
STORY = "tell me a story about a fox"
CHAT = "/v1/chat/completions"
CONFIG = """
models = ["demo", "demo-encoder"]
front_ends = 2
target = "cpu"
transcriber = "WHISPER"
hang_seconds = 8
receipt_key = "receipts.pem"
"""
KEYS = """
[[keys]]
name = "admin"
key = "the-admins-key"
admin = true

[[keys]]
name = "few"
key = "a-key-of-few-answers"
requests_per_minute = 6
"""
ADMIN, FEW = ({"Authorization": f"Bearer {key}"} for key in ("the-admins-key", "a-key-of-few-answers"))


@dataclass(frozen=True)
class Served:
    process: subprocess.Popen[str]
    url: str
    log: Path

    def post(self, path: str, body: object, headers: dict[str, str] = ADMIN) -> httpx.Response:
        """On a new connection, so that either front end may answer."""
        return httpx.post(f"{self.url}{path}", json=body, headers=headers, timeout=WAIT_SECONDS)

    def ask(self, model: str = "demo", headers: dict[str, str] = ADMIN) -> httpx.Response:
        return self.post("/v1/chat/completions", chat(model), headers)

    def metrics(self) -> str:
        return httpx.get(f"{self.url}/metrics", timeout=WAIT_SECONDS).text

    def lines(self, event: str) -> list[dict[str, object]]:
        """The lines of the log about an event."""
        lines = (json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{"))
        return [line for line in lines if line["event"] == event]

    def front_ends(self) -> set[int]:
        """Process ids."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        pids = [pid for thread in threads for pid in thread.read_text().split()]
        return {int(pid) for pid in pids if "front_end" in Path(f"/proc/{pid}/cmdline").read_text()}


def chat(model: str, content: str = QUESTION, **more: object) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": content}], "temperature": 0, **more}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("front-ends")
    for model in ("demo", "demo-encoder"):
        # The context of each is the longest that it has: 512 tokens, and 256 of the encoder.
        compile_for_server(model, folder)
    whisper = str(speech_bundle(folder))
    new_key(folder / "receipts.pem")
    (folder / "nearfar.toml").write_text(CONFIG.replace("WHISPER", whisper) + KEYS)
    arguments = ["--config", str(folder / "nearfar.toml"), *(["--speaker", "espeak"] if SPEAKS else [])]
    with serving(*arguments, folder=folder) as (process, url):
        require_found(folder / "log")
        yield Served(process, url, folder / "log")


def speech_bundle(folder: Path) -> Path:
    (folder / "checkpoint").mkdir()
    make_whisper(folder / "checkpoint")
    options = CompileOptions(
        target="cpu", arch=default_arch("cpu"), quantization="f32", context=SHORT_CONTEXT, self_test=False
    )
    with one_compilation(), few_kernels():
        compile_model(str(folder / "checkpoint"), folder / "whisper", options)
    return folder / "whisper"


def test_both_front_ends_answer_about_recordings_with_one_transcriber(server: Served) -> None:
    sound = wav(np.random.default_rng(0).normal(0, 0.1, 8000).astype("<f4").tobytes(), 3, 32)
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(sound).decode(), "format": "wav"}}
    body = {**chat("demo"), "messages": [{"role": "user", "content": [part, {"type": "text", "text": "what?"}]}]}
    transcripts, first = [], len(server.lines("request"))

    def both_have_answered() -> bool:
        answer = server.post("/v1/chat/completions", {**body, "max_tokens": 2})
        assert answer.status_code == 200, answer.text
        transcripts.append(answer.json()["transcripts"])
        return len({line["pid"] for line in server.lines("request")[first:]}) == 2

    wait_until(both_have_answered)
    assert all(each == transcripts[0] for each in transcripts)
    assert transcripts[0][0]["seconds"] == 0.5
    form = {"data": {"model": "whisper"}, "headers": ADMIN, "timeout": WAIT_SECONDS}
    url = f"{server.url}/v1/audio/transcriptions"
    heard = httpx.post(url, files={"file": ("a.wav", sound)}, **form)  # type: ignore[arg-type]
    assert heard.json()["text"] == transcripts[0][0]["text"]
    damaged = httpx.post(url, files={"file": ("a.wav", sound[:20])}, **form)  # type: ignore[arg-type]
    assert damaged.status_code == 400
    assert "a.wav" in damaged.json()["error"]["message"]


def test_both_front_ends_sign_receipts_with_one_key(server: Served) -> None:
    receipts, first = list[dict[str, Any]](), len(server.lines("request"))

    def both_have_answered() -> bool:
        answer = server.post("/v1/chat/completions", {**chat("demo"), "max_tokens": 2, "receipt": True})
        assert answer.status_code == 200, answer.text
        receipts.extend(answer.json()["receipts"])
        return len({line["pid"] for line in server.lines("request")[first:]}) == 2

    wait_until(both_have_answered)
    signed = [SignedReceipt.model_validate(each) for each in receipts]
    assert all(is_signed(each["receipt"], own.signature) for each, own in zip(receipts, signed, strict=True))
    assert (
        len({(each.signature.public_key, each.receipt.bundle, each.receipt.device.activation) for each in signed}) == 1
    )
    assert signed[0].receipt.device.activation is not None


# The first test here has transcripts of the main process, and api/test_transcription_streams.py their windows.
@pytest.mark.exhaustive
def test_openai_s_client_reads_transcripts_of_the_main_process_window_by_window(server: Served) -> None:
    sound = wav(np.random.default_rng(1).normal(0, 0.1, 64000).astype("<f4").tobytes(), 3, 32)
    long = wav(np.random.default_rng(1).integers(-9000, 9000, 16000 * 700).astype("<i2").tobytes(), 1, 16)

    @contextmanager
    def stream(sound: bytes) -> Iterator[openai.Stream[Any]]:
        # On a new connection, so that either front end may answer.
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="the-admins-key", max_retries=0) as client:
            yield client.audio.transcriptions.create(
                model="whisper", file=("a.wav", sound), stream=True, temperature=0.2
            )

    first = len(server.lines("request"))

    def both_have_answered() -> bool:
        with stream(sound) as received:
            *deltas, done = received
        assert len(deltas) > 1
        assert "".join(each.delta for each in deltas) == done.text != ""
        return len({line["pid"] for line in server.lines("request")[first:]}) == 2

    wait_until(both_have_answered)
    # A client that hangs up ends the transcript in the main process, which then makes the next one.
    with stream(long) as left:
        assert next(left).type == "transcript.text.delta"
        left.close()
    wait_until(lambda: any(line.get("finish_reason") == "abort" for line in server.lines("request")[first:]))
    with stream(sound) as received:
        assert list(received)[-1].type == "transcript.text.done"
    with pytest.raises(openai.BadRequestError, match=re.escape("a.wav")), stream(sound[:20]):
        pass


@pytest.mark.skipif(not SPEAKS, reason="pip install 'nearfar[espeak]'")
def test_each_front_end_speaks(server: Served) -> None:
    body, first = {"model": "espeak", "voice": "en", "input": "Hello."}, len(server.lines("request"))

    def both_have_answered() -> bool:
        answer = server.post("/v1/audio/speech", body)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "audio/wav")
        assert len(answer.content) > 20_000
        return len({line["pid"] for line in server.lines("request")[first:]}) == 2

    wait_until(both_have_answered)


def test_both_front_ends_answer_with_one_engine(server: Served) -> None:
    answers = list[httpx.Response]()

    def both_have_answered() -> bool:
        answers.append(server.ask())
        return len({line["pid"] for line in server.lines("request")}) == 2

    wait_until(both_have_answered)
    assert {answer.json()["choices"][0]["message"]["content"] for answer in answers} == {ANSWER}
    assert {line["pid"] for line in server.lines("request")} == server.front_ends()
    # The metrics are the sums of both. An answer is counted soon after it was sent.
    counted = re.compile(rf'^vllm:request_success_total{{.*"stop".*}} {len(answers)}\.0$', re.MULTILINE)
    wait_until(lambda: counted.search(server.metrics()) is not None)
    assert re.search(r"^nearfar:engine_steps_total{.*} [1-9]", server.metrics(), re.MULTILINE)


def test_both_front_ends_embed_and_rank_with_one_encoder(server: Served) -> None:
    passages = ["A bundle is a folder of data.", "The fox sleeps."]
    vectors, first = [], len(server.lines("request"))

    def both_have_answered() -> bool:
        answer = server.post("/v1/embeddings", {"model": "demo-encoder", "input": passages})
        vectors.append([each["embedding"] for each in answer.json()["data"]])
        return len({line["pid"] for line in server.lines("request")[first:]}) == 2

    wait_until(both_have_answered)
    assert all(each == vectors[0] for each in vectors)
    ranking = {"model": "demo-encoder", "query": passages[1], "documents": passages}
    assert server.post("/v1/rerank", ranking).json()["results"][0]["index"] == 1


def test_the_rate_of_a_key_counts_in_all_front_ends(server: Served) -> None:
    answers = [server.ask(headers=FEW) for _ in range(8)]
    assert [answer.status_code for answer in answers] == [200] * 6 + [429] * 2
    assert answers[5].headers["x-ratelimit-remaining-requests"] == "0"
    assert "Retry-After" in answers[7].headers


def test_models_are_loaded_and_unloaded_in_all_front_ends(server: Served) -> None:
    assert server.post("/v1/models/load", {"model": "demo", "name": "second", "aliases": ["other"]}).status_code == 200
    assert [server.ask(name).status_code for name in ("second", "other") * 4] == [200] * 8
    refused = server.post("/v1/models/load", {"model": "demo", "name": "other"})
    assert refused.status_code == 400
    assert "already in use" in refused.json()["error"]["message"]
    assert server.post("/v1/models/load", {"model": "./nothing"}, FEW).status_code == 403
    assert server.post("/v1/models/unload", {"model": "second"}).status_code == 200
    assert [server.ask("other").status_code for _ in range(6)] == [404] * 6
    assert server.ask().status_code == 200


@contextmanager
def client_of_each(server: Served) -> Iterator[list[httpx.Client]]:
    """Clients whose connections are to different front ends."""
    pids, clients = server.front_ends(), dict[int, httpx.Client]()
    with ExitStack() as stack:

        def both_are_connected() -> bool:
            client = stack.enter_context(httpx.Client(base_url=server.url, headers=ADMIN, timeout=WAIT_SECONDS))
            with client.stream("GET", "/health/live") as response:
                clients.setdefault(owner_of(response, pids), client)
                response.read()
            return len(clients) == 2

        wait_until(both_are_connected)
        yield list(clients.values())


def test_each_front_end_continues_the_answers_of_the_other(server: Served) -> None:
    # Sampled, so that two answers would be different.
    body = chat("demo", STORY, stream=True, ignore_eos=True, max_tokens=60, temperature=2)
    with client_of_each(server) as clients, ThreadPoolExecutor(6) as threads:
        for key, (one, other) in {"first": clients, "second": clients[::-1]}.items():
            named = {"Idempotency-Key": key}
            assert other.post(CHAT, json=body, headers={**named, "Last-Event-ID": "0"}).status_code == 409
            whole = one.post(CHAT, json=body, headers=named).text
            rest = whole[whole.index("id: 3\n") :]
            for client in clients:
                assert client.post(CHAT, json=body, headers=named).text == whole
                assert client.post(CHAT, json=body, headers={**named, "Last-Event-ID": "2"}).text == rest
            another = other.post(CHAT, json={**body, "seed": 5}, headers=named)
            assert another.json()["error"]["code"] == "idempotency_key_reused"
        # Requests that arrive at the same time share an answer, too.
        same = list(
            threads.map(lambda client: client.post(CHAT, json=body, headers={"Idempotency-Key": "same"}), clients * 3)
        )
    assert len({each.text for each in same}) == 1
    assert same[0].text.endswith("data: [DONE]\n\n")


def test_a_front_end_ends_an_answer_of_the_other(server: Served) -> None:
    body = chat("demo", STORY, stream=True, ignore_eos=True, max_tokens=440, n=16)
    with client_of_each(server) as (one, other):
        # However long it is, an answer may be complete before a busy machine cancels it.
        for attempt in range(8):
            named = {"Idempotency-Key": f"ended-{attempt}"}
            with (
                one.stream("POST", CHAT, json=body, headers=named) as begun,
                httpx.stream(
                    "POST", f"{server.url}{CHAT}", json=body, headers={**ADMIN, **named}, timeout=WAIT_SECONDS
                ) as also,
            ):
                lines = begun.iter_lines()
                assert next(lines) == "id: 1"
                assert other.post("/v1/cancel", headers=named).status_code == 204
                assert other.post("/v1/cancel", headers=named).status_code == 404
                assert other.post(CHAT, json=body, headers={**named, "Last-Event-ID": "1"}).status_code == 409
                if [text for text in (*lines, *also.iter_lines()) if "[DONE]" in text] == []:
                    return
    raise AssertionError("no answer ended before it was complete")


def test_each_front_end_continues_and_ends_the_responses_of_the_other(server: Served) -> None:
    path = "/v1/responses"
    first, second = {"model": "demo", "input": QUESTION, "temperature": 0}, {"model": "demo", "input": "what is 3 + 4?"}
    long = {"model": "demo", "input": STORY, "background": True, "temperature": 2, "max_output_tokens": 200}
    with client_of_each(server) as clients:
        for one, other in (clients, clients[::-1]):
            begun = one.post(path, json=first).json()
            assert other.get(f"{path}/{begun['id']}").json() == begun
            again = other.post(path, json={**second, "previous_response_id": begun["id"], "temperature": 0}).json()
            items = one.get(f"{path}/{again['id']}/input_items?order=asc").json()["data"]
            assert [item["content"][0]["text"] for item in items] == [QUESTION, ANSWER, second["input"]]
            assert other.delete(f"{path}/{begun['id']}").json()["deleted"] is True
            assert one.get(f"{path}/{begun['id']}").status_code == 404
            story = one.post(path, json=long).json()
            events = other.get(f"{path}/{story['id']}?stream=true").text
            final = one.get(f"{path}/{story['id']}").json()
            assert json.loads(events.rstrip().rpartition("data: ")[2])["response"] == final
            endless = one.post(path, json={**long, "max_output_tokens": None, "priority": -1}).json()
            ended = other.post(f"{path}/{endless['id']}/cancel").json()["status"]
            assert one.get(f"{path}/{endless['id']}").json()["status"] == ended


def test_a_front_end_that_crashes_fails_its_own_requests_and_is_started_again(server: Served) -> None:
    before = server.front_ends()
    # So many answers that they do not end before their front end.
    long = chat("demo", STORY, stream=True, ignore_eos=True, max_tokens=440, n=16)
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=long, timeout=WAIT_SECONDS,
                      headers={**ADMIN, "Idempotency-Key": "story"}) as story:  # fmt: skip
        lines = story.iter_lines()
        next(lines)
        # Only its sockets show which front end has a connection.
        victim = owner_of(story, before)
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(httpx.RemoteProtocolError):
            _ = list(lines)

    def ended() -> list[tuple[object, object]]:
        return [(line["front_end"], line["status"]) for line in server.lines("front_end_ended")]

    wait_until(lambda: (victim, -signal.SIGKILL) in ended())
    # On a busy machine, the other one may be taken for one that hangs, and be started again as well.
    wait_until(lambda: len(server.front_ends() - before) >= 1)
    assert victim not in server.front_ends()
    wait_until(lambda: len(server.front_ends()) == 2 and all(server.ask().status_code == 200 for _ in range(8)))
    assert re.search(r"nearfar:front_end_restarts_total [1-9]", server.metrics())
    # Its kept answers have ended with it, and their keys are free.
    named = {**ADMIN, "Idempotency-Key": "story"}
    gone = server.post(CHAT, long, {**named, "Last-Event-ID": "1"})
    assert (gone.status_code, gone.json()["error"]["code"]) == (409, "answer_not_kept")
    assert server.post(CHAT, {**long, "n": 1, "max_tokens": 2}, named).status_code == 200


# The test above has one that crashes; test_remote_engine.py has processes that hang.
@pytest.mark.exhaustive
def test_a_front_end_that_hangs_is_started_again_and_its_connections_are_answered(server: Served) -> None:
    before = server.front_ends()
    victim = min(before)
    os.kill(victim, signal.SIGSTOP)
    with ThreadPoolExecutor(12) as threads:
        # The kernel gives half of these connections to the victim, and the others to the other one.
        answers = list(threads.map(lambda _: server.ask(), range(12)))
    assert [answer.status_code for answer in answers] == [200] * 12
    wait_until(lambda: len(server.front_ends() - before) >= 1)
    assert victim in [line["front_end"] for line in server.lines("front_end_hung")]
    wait_until(lambda: len(server.front_ends()) == 2 and all(server.ask().status_code == 200 for _ in range(8)))


def owner_of(response: httpx.Response, pids: set[int]) -> int:
    """The process that answers."""
    stream = response.extensions["network_stream"].get_extra_info("socket")
    assert isinstance(stream, socket.socket)
    # Earlier connections to other servers may have had the client's port.
    ports = [f":{port:04X}" for port in (stream.getpeername()[1], stream.getsockname()[1])]
    inode = next(
        line.split()[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if all(address.endswith(port) for address, port in zip(line.split()[1:3], ports, strict=True))
    )
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            # A file that was closed since it was listed.
            with suppress(FileNotFoundError):
                if os.readlink(file) == f"socket:[{inode}]":
                    return pid
    raise AssertionError(f"no front end has socket {inode}")


def test_a_reload_is_for_all_front_ends_and_drops_no_answer(server: Served) -> None:
    file = server.log.with_name("nearfar.toml")
    before, new = file.read_text(), {"Authorization": "Bearer the-newest-key"}
    assert {server.ask(headers=new).status_code for _ in range(4)} == {401}

    def reload(text: str, event: str) -> dict[str, object]:
        seen = len(server.lines(event))
        file.write_text(text)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(server.lines(event)) > seen)
        return server.lines(event)[-1]

    with client_of_each(server) as (one, other):
        body = chat("demo", STORY, stream=True)
        with one.stream("POST", CHAT, json=body) as first, other.stream("POST", CHAT, json=body) as second:
            answers = [first.iter_lines(), second.iter_lines()]
            begun = [next(lines) for lines in answers]
            refused = reload(before.replace("front_ends = 2", "front_ends = 3"), "reload_refused")
            assert "front_ends: cannot change while the server runs" in str(refused["message"])
            added = '[[keys]]\nname = "new"\nkey = "the-newest-key"\n[aliases]\ngpt = "demo"\n'
            changed = reload(before.replace("target", 'max_body = "1MB"\ntarget', 1) + added, "reloaded")
            assert changed["changed"] == ["max_body", "aliases", "keys"]
            texts = ["".join([line, *lines]) for line, lines in zip(begun, answers, strict=True)]
        assert all("[DONE]" in text for text in texts)
        for client in (one, other):
            assert client.post(CHAT, json=chat("gpt"), headers=new).status_code == 200
            large = client.post(CHAT, json=chat("demo", "x" * 2_000_000))
            assert large.status_code == 413
            assert client.get("/health/startup").json() == {"status": "started"}
        reload(before, "reloaded")
        for client in (one, other):
            assert client.post(CHAT, json=chat("demo"), headers=new).status_code == 401
            assert client.post(CHAT, json=chat("gpt")).status_code == 404


def test_a_model_sleeps_and_wakes_in_all_front_ends(server: Served) -> None:
    with client_of_each(server) as clients, ThreadPoolExecutor(1) as thread:
        about = clients[0].get("/v1/nearfar/about").json()["models"]
        opening = {
            "type": "open",
            "version": 1,
            "model": "demo",
            "tokenizer_sha256": next(each["tokenizer_sha256"] for each in about if each["id"] == "demo"),
            "prompt": clients[0].post("/tokenize", json={"model": "demo", "prompt": QUESTION}).json()["tokens"],
        }
        address = server.url.replace("http", "ws", 1) + "/v1/nearfar/verify"
        with connect(address, additional_headers=ADMIN, open_timeout=WAIT_SECONDS) as socket:
            # Between two drafts nothing runs, and the request still uses its model.
            socket.send(json.dumps(opening))
            assert json.loads(socket.recv())["type"] == "opened"
            sleeping = thread.submit(server.post, "/sleep?model=demo", None)
            wait_until(lambda: all(client.get("/is_sleeping?model=demo").json()["is_sleeping"] for client in clients))
            for client in clients:
                asleep = client.post(CHAT, json=chat("demo"))
                assert (asleep.status_code, asleep.json()["error"]["code"]) == (503, "model_asleep")
                assert "demo" in [card["id"] for card in client.get("/v1/models").json()["data"]]
            socket.send(json.dumps({"type": "draft", "tokens": []}))
            assert len(json.loads(socket.recv())["tokens"]) == 1
            assert not sleeping.done()
        assert sleeping.result().json() == {"asleep": ["demo"]}
        assert clients[1].post("/wake_up").status_code == 200
        for client in clients:
            assert client.post(CHAT, json=chat("demo")).json()["choices"][0]["message"]["content"] == ANSWER
            assert client.post("/reset_prefix_cache?model=demo").json() == {"reset": ["demo"]}


def test_sigterm_lets_all_front_ends_finish(server: Served) -> None:
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=chat("demo", STORY, stream=True),
                      headers=ADMIN, timeout=WAIT_SECONDS) as story:  # fmt: skip
        lines = story.iter_lines()
        first = next(lines)
        server.process.send_signal(signal.SIGTERM)
        text = "".join([first, *lines])
    assert '"finish_reason":"stop"' in text
    assert "[DONE]" in text
    assert server.process.wait(WAIT_SECONDS) == 0
    assert server.lines("bug") == []


@pytest.mark.exhaustive
def test_a_main_process_that_hangs_ends_the_server_so_that_it_can_be_started_again(tmp_path: Path) -> None:
    compile_for_server("demo", tmp_path, context=512)
    arguments = ["demo", "--front-ends", "2", "--target", "cpu", "--context", "512", "--hang-seconds", "4"]
    with serving(*arguments, folder=tmp_path) as (process, url):
        server = Served(process, url, tmp_path / "log")
        assert server.ask().status_code == 200
        front_ends = server.front_ends()
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: httpx.get(f"{url}/health/ready", timeout=WAIT_SECONDS).status_code == 503)
        assert process.wait(WAIT_SECONDS) == -signal.SIGKILL
        assert server.lines("main_process_hung")
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in front_ends))


@pytest.mark.parametrize("executor", ["vllm", "upstream"])
def test_front_ends_are_for_models_on_this_machine(executor: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "big", "--executor", executor, "--upstream", "http://here", "--front-ends", "2"]) == 2
    assert "--front-ends is for models on this machine" in capsys.readouterr().err
