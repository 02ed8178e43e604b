"""The gateway: OpenAI's API for both sides, called with OpenAI's own client and with plain HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import socket
from threading import Event, Thread
from typing import Any

import httpx
import openai
import pytest
from fake_openai import Reply, running, text_chunks
from fastapi import FastAPI
from hybrid_gateway import NearOpener, elsewhere, gateway
from hybrid_sides import FAR_USAGE, FakeFar, FakeNear, completion, policy, run
from plain_target import compile_plain
from test_hybrid_files import RECORDING, TRANSCRIPT, Heard, about
from test_transcriptions import NOISE, speech_executor
from tiny_whisper import SHORT_CONTEXT, make_whisper
from waiting import WAIT_SECONDS

from nearfar.compiler.cli import main
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import read_keys
from nearfar.server_fallback.api.server import Server, bind
from nearfar.server_fallback.cli import gateway as command
from nearfar.server_fallback.cli.gateway import routes
from nearfar.server_fallback.cli.options import Gateway
from nearfar.server_fallback.executors.executor import ExecutorState, Opening
from nearfar.server_fallback.executors.registry import Registry
from nearfar.server_fallback.executors.speech_executor import SpeechExecutor
from nearfar.server_fallback.router.decision.policy import Policy
from nearfar.server_fallback.router.opening import HybridOpener
from nearfar.server_fallback.router.sides.far import Far
from nearfar.server_fallback.schema.models import LoadRequest

MESSAGES: Any = [{"role": "user", "content": "hi"}]
BODY = {"model": "tiny", "messages": MESSAGES}
KEY = "sk-web-12345678"


@contextmanager
def served(near: FakeNear, far: FakeFar, rules: dict[str, Any]) -> Iterator[openai.OpenAI]:
    """OpenAI's client for a gateway on its own port."""
    ready: list[Registry] = []
    began = Event()

    async def started() -> None:
        registry = Registry(HybridOpener(NearOpener(near), Far(far.url), Policy.read(rules)))
        await registry.load(LoadRequest(model="tiny"))
        ready.append(registry)
        began.set()

    class Later:
        """The registry, which needs the server's loop."""

        def __getattr__(self, name: str) -> Any:
            return getattr(ready[0], name)

    listener = bind("127.0.0.1", 0)
    config = ApiConfig(keys=read_keys(None, {"NEARFAR_API_KEYS": f"web={KEY}"}))
    server = Server(create_app(Later(), config, routed=True), started)
    thread = Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    try:
        assert began.wait(WAIT_SECONDS)
        with openai.OpenAI(
            base_url=f"http://127.0.0.1:{listener.getsockname()[1]}/v1", api_key=KEY, max_retries=0
        ) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(WAIT_SECONDS)


def test_openais_client_gets_one_answer_across_a_switch() -> None:
    far = FakeFar(lambda _: Reply(chunks=text_chunks("one ", "two ", usage=FAR_USAGE), breaks_after=3))
    ours = {"labels": ["private"], "pin": "near"}
    with elsewhere(far), served(FakeNear("one two three"), far, policy("prefer-far")) as client:
        stream = client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True, extra_body=ours)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "one two three"
        stream = client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        chunks = list(stream)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two three"
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
        raw = client.chat.completions.with_raw_response.create(model="tiny", messages=MESSAGES)
        assert raw.headers["x-nearfar-route"] == "near"
        answer = raw.parse()
        assert answer.choices[0].message.content == "one two three"
        assert answer.model_extra is not None
        route = answer.model_extra["route"]
        assert (route["side"], route["reason"], route["switched_at"]) == ("near", "far_failed", 8)


async def responses(
    near: FakeNear, far: FakeFar, rules: dict[str, Any], *bodies: tuple[str, dict[str, Any]]
) -> list[httpx.Response]:
    """The answers to requests sent one after the other."""
    async with running(far), gateway(near, Far(far.url), rules) as app, client_of(app) as client:
        return [await (client.post(path, json=body) if body else client.get(path)) for path, body in bodies]


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


def test_the_header_names_the_side_and_the_metrics_count_routes_and_switches() -> None:
    far = FakeFar(lambda _: Reply(chunks=text_chunks("one ", usage=FAR_USAGE), breaks_after=2))
    work = responses(
        FakeNear("one two"),
        far,
        policy("prefer-far"),
        ("/v1/chat/completions", BODY),
        ("/v1/chat/completions", {**BODY, "stream": True, "pin": "near"}),
        ("/metrics", {}),
    )
    whole, stream, metrics = run(work)
    assert whole.json()["choices"][0]["message"]["content"] == "one two"
    assert (whole.headers["x-nearfar-route"], stream.headers["x-nearfar-route"]) == ("near", "near")
    assert 'nearfar:route_total{reason="prefer",side="far"} 1.0' in metrics.text
    assert 'nearfar:route_total{reason="pinned",side="near"} 1.0' in metrics.text
    assert 'nearfar:switches_total{from="far",reason="far_failed",to="near"} 1.0' in metrics.text


def test_completions_are_routed_and_continued_by_the_other_side() -> None:
    near, far = (
        FakeNear("one two", DeviceError("lost"), error_at=4),
        FakeFar(lambda _: Reply(chunks=completion("tw", "o"))),
    )
    body = {"model": "tiny", "prompt": "say: ", "max_tokens": 9}
    whole, stream = run(
        responses(near, far, policy(), ("/v1/completions", body), ("/v1/completions", {**body, "stream": True}))
    )
    assert whole.json()["choices"][0]["text"] == "one two"
    assert whole.json()["route"]["switched_at"] == 4
    assert (far.generated[0]["prompt"], far.generated[0]["max_tokens"]) == ("say: one ", 5)
    assert "[DONE]" in stream.text


def test_a_client_that_leaves_ends_both_sides() -> None:
    near, far = FakeNear("one two", hangs_at=4), FakeFar()

    async def work() -> None:
        async with running(far), gateway(near, Far(far.url), policy()) as app, client_of(app) as client:
            asking = asyncio.create_task(client.post("/v1/chat/completions", json=BODY))
            while not near.requests:
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        assert near.closed_early == 1
        assert near.closed

    run(work())


def test_the_error_for_unsupported_routing_names_the_parameter() -> None:
    refusals = run(
        responses(
            FakeNear(), FakeFar(), policy(),
            ("/v1/chat/completions", {**BODY, "n": 2}),
            ("/v1/chat/completions", {**BODY, "labels": ["unheard"]}),
            ("/v1/chat/completions", {**BODY, "pin": "middle"}),
            ("/v1/completions", {"model": "tiny", "prompt": ["a", "b"]}),
            ("/v1/completions", {"model": "tiny", "prompt": "a", "echo": True}),
        )
    )  # fmt: skip
    assert [answer.status_code for answer in refusals] == [400] * 5
    assert [answer.json()["error"]["param"] for answer in refusals] == ["n", "labels", "pin", "prompt", "echo"]


def test_a_plain_server_does_not_know_labels_and_pins() -> None:
    async def work() -> list[str]:
        async with running(far := FakeFar()), gateway(FakeNear(), Far(far.url), policy()) as app:
            plain = create_app(app.state.service.models, ApiConfig())
            async with client_of(plain) as client:
                answers = [
                    await client.post("/v1/chat/completions", json={**BODY, "pin": "near"}),
                    await client.post(
                        "/v1/chat/completions", json={**BODY, "messages": [{**MESSAGES[0], "labels": ["private"]}]}
                    ),
                ]
            return [answer.json()["error"]["message"] for answer in answers]

    assert run(work()) == ["Unknown parameter: 'pin'.", "Unknown parameter: 'messages[0].labels'."]


def test_near_embeds_if_it_can() -> None:
    near, far = FakeNear(embeds=True), FakeFar()
    near_answer, text = run(
        responses(
            near,
            far,
            policy(),
            ("/v1/embeddings", {"model": "tiny", "input": "x", "labels": ["private"]}),
            ("/v1/chat/completions", BODY),
        )
    )
    assert near_answer.json()["data"][0]["embedding"] == [1.0]
    # Near generates nothing, so the far side answers.
    assert text.json()["route"]["reason"] == "near_unavailable"
    vectors = {
        "object": "list",
        "model": "big",
        "data": [{"index": 0, "embedding": [2.0]}],
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }
    (far_answer,) = run(
        responses(
            FakeNear(),
            FakeFar(lambda _: Reply(value=vectors)),
            policy(),
            ("/v1/embeddings", {"model": "tiny", "input": "x"}),
        )
    )
    assert (far_answer.json()["data"][0]["embedding"], far_answer.json()["model"]) == ([2.0], "tiny")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--far", "http://a", "--policy", "none.json"), "none.json: cannot be read"),
        (
            ("--far", "http://a", "--policy", "good", "--far-api-key-env", "NOT_SET"),
            "NOT_SET: this environment variable",
        ),
        (("--far", "http://a", "--policy", "good", "--port", "-1"), "choose others"),
    ],
)
def test_invalid_options_are_errors_that_state_why(
    arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = tmp_path / "policy.json"
    good.write_text('{"version": 1, "mode": "prefer-near"}')
    given = [str(good) if argument == "good" else argument for argument in arguments]
    assert main(["gateway", "--near", "demo", *given]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_gateway_prints_both_sides() -> None:
    rules = Policy.read(policy("auto", private={"labels": ["private", "health"], "patterns": ["[0-9]{9}"]}))
    assert routes("demo", Far("http://far:8000", model="big"), rules) == (
        "routing by auto: near is demo, far is big at http://far:8000; "
        "requests labelled private or labelled health or that match the pattern stay near"
    )
    masks = {"patterns": [{"kind": "ID", "pattern": "[0-9]{9}"}], "then": "ask"}
    rules = Policy.read(policy("auto", private={"labels": [], "masks": masks}))
    assert routes("demo", Far("http://far:8000"), rules).endswith(
        "; private texts are masked, and leave once confirmed"
    )


def test_a_gateway_with_a_transcriber_answers_about_recordings_and_says_so() -> None:
    async def work() -> None:
        far = FakeFar()
        body = {"model": "tiny", "messages": about(RECORDING)}
        hearing = gateway(FakeNear(), Far(far.url), policy(), transcriber=Heard("tiny"))
        async with running(far), hearing as app, client_of(app) as client:
            answer = (await client.post("/v1/chat/completions", json=body)).json()
            assert answer["transcripts"] == [TRANSCRIPT]
            assert answer["route"]["side"] == "near"
            [card] = (await client.get("/v1/nearfar/about")).json()["models"]
            assert card["sound"] is True
            [card] = (await client.get("/v1/models")).json()["data"]
            assert card["input_modalities"] == ["text", "audio"]
        async with running(far), gateway(FakeNear(), Far(far.url), policy()) as app, client_of(app) as client:
            refused = await client.post("/v1/chat/completions", json=body)
            assert refused.status_code == 400
            assert refused.json()["error"]["code"] == "sound"
            [card] = (await client.get("/v1/nearfar/about")).json()["models"]
            assert card["sound"] is False

    run(work())


def test_a_model_of_sound_is_served_as_it_is() -> None:
    class Speech:
        async def prepare(self, model: str, name: str | None) -> Opening:
            return Opening(name or model, 1, None, "transcribe")  # type: ignore[arg-type]

    async def work() -> None:
        opener = HybridOpener(Speech(), Far("http://far"), Policy.read(policy()))
        opening = await opener.prepare("whisper", None)
        assert opening.task == "transcribe"
        assert opening.open is None

    run(work())


def test_transcripts_stream_beside_a_pair(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    make_whisper(tmp_path / "model")
    bundle = compile_plain(tmp_path / "model", tmp_path / "bundle", "f32", SHORT_CONTEXT)

    async def open_speech() -> SpeechExecutor:
        return speech_executor(bundle)

    class Speech:
        async def prepare(self, model: str, name: str | None) -> Opening:
            return Opening(name or model, None, open_speech, "transcribe")

    async def work() -> None:
        registry = Registry(HybridOpener(Speech(), Far("http://far"), Policy.read(policy())))
        await registry.load(LoadRequest(model="whisper"))
        async with client_of(create_app(registry, ApiConfig(), routed=True)) as client:
            ours = openai.AsyncOpenAI(base_url="http://test/v1", api_key=KEY, max_retries=0, http_client=client)
            stream = await ours.audio.transcriptions.create(model="whisper", file=("a.wav", NOISE), stream=True)
            *deltas, done = [event async for event in stream]
        assert len(deltas) > 1
        assert done.type == "transcript.text.done"
        assert "".join(each.delta for each in deltas if each.type == "transcript.text.delta") == done.text != ""
        await registry.close(0.0)

    run(work())


def test_the_command_waits_for_its_transcriber(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is loaded, a recording would be refused."""
    (tmp_path / "policy.json").write_text(json.dumps(policy()))
    statuses = list[int]()

    async def ready_of(app: FastAPI) -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.get("/health/ready")).status_code

    def serve(app: FastAPI, listener: socket, *_: object) -> None:
        listener.close()
        statuses.append(run(ready_of(app)))

    monkeypatch.setattr(command, "run_server", serve)
    monkeypatch.setattr(command, "configure_logs", lambda _: None)
    monkeypatch.setattr(Registry, "states", lambda _: {"near": ExecutorState(ready=True, detail="cpu")})
    for transcriber in (None, "whisper"):
        given = Gateway(
            near="near", far="http://127.0.0.1:9", policy=tmp_path / "policy.json", port=0, transcriber=transcriber
        )
        command.run(given)
    assert statuses == [200, 503]


def test_anthropic_s_messages_have_the_side_and_the_stop_sequence_that_it_reports() -> None:
    chunks = text_chunks("one", usage=FAR_USAGE)
    # As vLLM names it.
    chunks[-2]["choices"][0]["stop_reason"] = " two"
    far = FakeFar(lambda _: Reply(chunks=chunks))
    body = {**BODY, "max_tokens": 99, "stop_sequences": [" two"]}
    asked = [("/v1/messages", body), ("/v1/messages", {**body, "labels": ["private"], "pin": "near"})]
    left, kept = [answer.json() for answer in run(responses(FakeNear("near"), far, policy("prefer-far"), *asked))]
    assert (left["content"][0]["text"], left["stop_reason"], left["stop_sequence"]) == ("one", "stop_sequence", " two")
    assert (left["route"]["side"], left["usage"]["output_tokens"]) == ("far", FAR_USAGE["completion_tokens"])
    assert far.generated[0]["stop"] == [" two"]
    assert (kept["content"][0]["text"], kept["stop_reason"], kept["route"]["side"]) == ("near", "end_turn", "near")
