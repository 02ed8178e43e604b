"""/v1/nearfar/verify on a socket: which clients may send drafts, the server's replies, and how connections end."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from asgi import run
from engine_requests import Gate
from fake_models import FakeExecutor
from hash_model import VOCAB, answer_of
from live_server import LiveServer
from verifying_executor import VerifyingExecutor, served
from waiting import WAIT_SECONDS, until, wait_until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from nearfar.server_fallback.api import drain
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import ApiKey, Keys, read_keys

KEY = "sk-web-12345678"
KEYS = read_keys(None, {"NEARFAR_API_KEYS": f"web={KEY}"})
PROMPT = [13, 2, 3, 13, 10, 1, 5, 13, 1, 14]
TOKENS = answer_of(PROMPT, 20, 64)[0]


def opening(**other: Any) -> dict[str, Any]:
    return {
        "type": "open",
        "version": 1,
        "model": "fake",
        "tokenizer_sha256": "5ha",
        "prompt": PROMPT,
        "max_tokens": 20,
        **other,
    }


def draft(tokens: Sequence[int]) -> dict[str, Any]:
    return {"type": "draft", "tokens": list(tokens)}


def asking(server: LiveServer, **options: Any) -> connect:
    return connect(f"ws://127.0.0.1:{server.port}/v1/nearfar/verify", open_timeout=WAIT_SECONDS, **options)


async def send_json(socket: ClientConnection, message: object) -> None:
    await socket.send(message if isinstance(message, str | bytes) else json.dumps(message))


async def received(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(WAIT_SECONDS):
        value: dict[str, Any] = json.loads(await socket.recv())
    return value


async def closed(socket: ClientConnection) -> int | None:
    """The code with which the server closes the connection."""
    with pytest.raises(ConnectionClosed):
        await received(socket)
    return socket.close_code


def test_drafts_are_answered_until_the_end() -> None:
    async def work() -> None:
        executor = VerifyingExecutor()
        async with served(executor) as server, asking(server) as socket:
            await send_json(socket, opening())
            assert await received(socket) == {"type": "opened", "version": 1, "context": 256, "max_drafts": 4}
            await send_json(socket, draft(TOKENS[:4]))
            assert await received(socket) == {"type": "accepted", "tokens": TOKENS[:5], "cached_tokens": 0}
            await send_json(socket, draft([(TOKENS[5] + 1) % VOCAB]))
            assert await received(socket) == {
                "type": "accepted",
                "tokens": TOKENS[5:6],
                "cached_tokens": len(PROMPT) + 4,
            }
            found = TOKENS[:6]
            while True:
                await send_json(socket, draft(TOKENS[len(found) : len(found) + 4]))
                reply = await received(socket)
                found += reply["tokens"]
                if "finish_reason" in reply:
                    break
            assert (found, reply["finish_reason"]) == (TOKENS, "length")
            assert await closed(socket) == 1000

    run(work())


@pytest.mark.parametrize(
    ("messages", "status", "code", "param"),
    [
        (["{"], 400, "invalid_json", None),
        ([b"{}"], 400, "invalid_json", None),
        ([["open"]], 400, "invalid_type", None),
        ([opening(version=2)], 400, "verify_version", "version"),
        ([opening(model="nobody")], 404, "model_not_found", "model"),
        ([opening(tokenizer_sha256="other")], 400, "tokenizer_differs", "tokenizer_sha256"),
        ([opening(temperature="hot")], 400, "invalid_type", "temperature"),
        ([opening(stop=["."])], 400, "unknown_parameter", "stop"),
        ([draft([1])], 400, "invalid_type", "type"),
        ([opening(), opening()], 400, "invalid_type", "type"),
        ([opening(), draft([VOCAB])], 400, "invalid_value", "drafts"),
        ([opening(), {"type": "draft", "tokens": [1] * 65}], 400, "invalid_value", "tokens"),
        ([opening(), {"type": "draft", "tokens": [1.5]}], 400, "invalid_type", "tokens[0]"),
    ],
)
def test_an_invalid_message_is_reported_and_ends_the_connection(
    messages: list[Any], status: int, code: str, param: str | None
) -> None:
    async def work() -> None:
        async with served() as server, asking(server) as socket:
            for message in messages:
                await send_json(socket, message)
            reply = await received(socket)
            if reply["type"] == "opened":
                reply = await received(socket)
            assert reply["type"] == "error"
            assert (reply["error"]["code"], reply["error"].get("param")) == (code, param)
            assert await closed(socket) == 4000 + status

    run(work())


def test_a_model_that_does_not_verify_drafts_reports_it() -> None:
    async def work() -> None:
        for executor in (FakeExecutor(), VerifyingExecutor(max_drafts=0)):
            async with served(executor) as server, asking(server) as socket:
                await send_json(socket, opening())
                assert (await received(socket))["error"]["code"] == "verify_unavailable"
                assert await closed(socket) == 4400

    run(work())


def test_keys_come_in_the_header_or_among_the_protocols_of_a_page() -> None:
    def named(key: str) -> list[Any]:
        return ["nearfar.verify", "nearfar.key." + base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")]

    async def work() -> None:
        async with served(config=ApiConfig(keys=KEYS)) as server:
            for options in ({"additional_headers": {"Authorization": f"Bearer {KEY}"}}, {"subprotocols": named(KEY)}):
                async with asking(server, **options) as socket:
                    await send_json(socket, opening())
                    assert (await received(socket))["type"] == "opened"
                    # The key is not sent back.
                    assert socket.subprotocol == ("nearfar.verify" if "subprotocols" in options else None)
            for options in (
                {},
                {"subprotocols": named("sk-wrong-12345")},
                {"subprotocols": ["nearfar.verify", "nearfar.key.~"]},
            ):
                async with asking(server, **options) as socket:
                    assert (await received(socket))["error"]["code"] == "invalid_api_key"
                    assert await closed(socket) == 4401

    run(work())


def test_an_open_stream_counts_against_its_keys_limit() -> None:
    async def work() -> None:
        limited = Keys((ApiKey("web", KEYS.keys[0].digest, max_concurrent=1),))
        headers = {"Authorization": f"Bearer {KEY}"}
        async with served(config=ApiConfig(keys=limited)) as server:
            async with asking(server, additional_headers=headers) as first:
                await send_json(first, opening())
                assert (await received(first))["type"] == "opened"
                async with asking(server, additional_headers=headers) as second:
                    assert (await received(second))["error"]["code"] == "concurrency_limit_exceeded"
                    assert await closed(second) == 4429
            # After it disconnects, another one may connect.
            while server.server._service.limits.running:
                await asyncio.sleep(0.005)
            async with asking(server, additional_headers=headers) as third:
                await send_json(third, opening())
                assert (await received(third))["type"] == "opened"

    run(work())


def test_a_websocket_counts_among_the_connections_until_it_closes() -> None:
    async def work() -> None:
        async with served(config=ApiConfig(max_connections=4)) as server:
            limiter, connections = server.server._service.limits, server.server.open_connections
            async with asking(server) as first, asking(server):
                await send_json(first, opening())
                assert (await received(first))["type"] == "opened"
                assert (len(connections), limiter.running) == (2, 2)
                assert limiter.body_bytes == len(json.dumps(opening()))
                with pytest.raises((ConnectionError, EOFError, InvalidHandshake)):
                    await asking(server)
            await asyncio.to_thread(wait_until, lambda: len(connections) == 0)
            assert (limiter.running, limiter.body_bytes) == (0, 0)

    run(work())


def test_pages_of_other_sites_may_not_ask_unless_they_are_listed() -> None:
    async def work() -> None:
        async with served(
            config=ApiConfig(cors_origins=("https://example.org",), allowed_hosts=("127.0.0.1",))
        ) as server:
            for origin in ("https://example.org", f"http://127.0.0.1:{server.port}"):
                async with asking(server, origin=origin) as socket:
                    await send_json(socket, opening())
                    assert (await received(socket))["type"] == "opened"
            with pytest.raises(InvalidStatus) as refused:
                await asking(server, origin="https://other.example")
            assert refused.value.response.status_code == 403
            assert json.loads(refused.value.response.body or b"")["error"]["code"] == "origin_not_allowed"
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"ws://evil.example:{server.port}/v1/nearfar/verify", host="127.0.0.1", port=server.port)
            assert refused.value.response.status_code == 403

    run(work())


def test_a_client_that_disconnects_ends_its_round_and_a_silent_one_is_disconnected() -> None:
    async def work() -> None:
        async with served(config=ApiConfig(draft_timeout_seconds=0.05)) as server, asking(server) as socket:
            await send_json(socket, opening())
            assert (await received(socket))["type"] == "opened"
            assert (await received(socket))["error"]["code"] == "message_timeout"
            assert await closed(socket) == 4408
        executor = VerifyingExecutor(hold=(gate := Gate()))
        async with served(executor) as server:
            async with asking(server) as socket:
                # The length of three steps.
                await send_json(socket, opening(prompt=PROMPT * 5))
                assert (await received(socket))["type"] == "opened"
                await send_json(socket, draft(TOKENS[:4]))
                await until(lambda: executor.engine.stats().running == 1)
            await until(lambda: server.server._service.limits.running == 0)
            gate.open()
            await until(lambda: executor.engine.stats().running == 0)
            assert executor.engine.stats().generated_tokens == 0

    run(work())


def test_a_deadline_ends_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    passed_seconds = 0.0
    monkeypatch.setattr(drain, "time", SimpleNamespace(monotonic=lambda: monotonic() + passed_seconds))

    async def work() -> None:
        nonlocal passed_seconds
        executor = VerifyingExecutor(hold=(gate := Gate()))
        headers = {"X-Request-Timeout-Ms": "60000"}
        async with served(executor) as server:
            async with asking(server, additional_headers=headers) as socket:
                await send_json(socket, opening(prompt=PROMPT * 6))
                assert (await received(socket))["type"] == "opened"
                # The round, which is held, has almost no time left.
                passed_seconds = 59.9
                await send_json(socket, draft([]))
                assert (await received(socket))["error"]["code"] == "deadline_exceeded"
                assert await closed(socket) == 4503
            gate.open()

    run(work())


def test_a_server_on_its_way_out_ends_streams_between_two_rounds() -> None:
    async def work() -> None:
        async with served() as server, asking(server) as socket:
            await send_json(socket, opening())
            assert (await received(socket))["type"] == "opened"
            server.signal()
            await send_json(socket, draft([]))
            assert (await received(socket))["error"]["code"] == "unavailable"
            assert await closed(socket) == 4503

    run(work())


def test_a_stream_is_a_request_of_the_log_and_the_metrics(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> str:
        async with served() as server:
            async with asking(server, additional_headers={"X-Request-Id": "mine"}) as socket:
                assert socket.response is not None
                assert socket.response.headers["x-request-id"] == "mine"
                await send_json(socket, opening(max_tokens=2))
                assert (await received(socket))["type"] == "opened"
                await send_json(socket, draft(TOKENS[:1]))
                assert (await received(socket))["finish_reason"] == "length"
                assert await closed(socket) == 1000
            return server.server._service.metrics.text().decode()

    with caplog.at_level("INFO", "nearfar.server"):
        text = run(work())
    assert 'vllm:generation_tokens_total{model_name="fake"} 2.0' in text
    assert 'vllm:request_success_total{finished_reason="length",model_name="fake"} 1.0' in text
    fields = next(record.__dict__["fields"] for record in caplog.records if record.message == "request")
    assert fields["request_id"] == "mine"
    assert (fields["route"], fields["method"], fields["status"], fields["close_code"]) == (
        "/v1/nearfar/verify",
        "WEBSOCKET",
        101,
        1000,
    )
    assert (fields["prompt_tokens"], fields["completion_tokens"]) == (len(PROMPT), 2)
