"""Nothing private leaves the device: the far side records every byte that it gets, and gets none."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fake_openai import FakeOpenAI, running
from hybrid_gateway import gateway
from hybrid_sides import QUESTION, FakeFar, FakeNear, policy, run

from nearfar.compiler.runtime.errors import DeviceError, NearfarError, RequestError, Unavailable
from nearfar.server_fallback.router.decision import privacy
from nearfar.server_fallback.router.hybrid import Hybrid, read_request
from nearfar.server_fallback.router.sides.far import Far
from nearfar.server_fallback.router.sides.texts import texts_of

SECRET = "my number is 123-45-6789"
# Every setting that could make a request leave, all at once.
EAGER = policy(
    "prefer-far",
    private={"labels": ["private"], "patterns": [r"\b[0-9]{3}-[0-9]{2}-[0-9]{4}\b"]},
    escalation={"then": "restart", "warm": "always", "min_mean_logprob": 0.0, "window_tokens": 1},
    retries=3,
)
IN_PARTS = [{"type": "text", "text": text} for text in ("Summarize", "123-4", "5-6789", "now")]
CALL = {"id": "c1", "type": "function", "function": {"name": "save", "arguments": json.dumps({"text": SECRET})}}
TOOL = {"type": "function", "function": {"name": "save", "parameters": {"type": "object", "description": SECRET}}}
TOOL_OF_A_NAME = {"type": "function", "function": {"name": "save"}}


class Wire:
    """A connection to a server that records what it gets."""

    def __init__(self) -> None:
        self.bytes = b""
        self.connections = 0
        self.url = ""

    @asynccontextmanager
    async def to(self, server: FakeOpenAI) -> AsyncIterator[None]:
        writers: list[asyncio.StreamWriter] = []

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, keep: bool) -> None:
            writers.append(writer)
            while data := await reader.read(65536):
                self.bytes += data if keep else b""
                writer.write(data)
            writer.close()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            there, back = await asyncio.open_connection("127.0.0.1", server.port)
            await asyncio.gather(
                forward(reader, back, keep=True), forward(there, writer, keep=False), return_exceptions=True
            )

        listener = await asyncio.start_server(connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            listener.close()
            for writer in writers:
                writer.transport.abort()
            await asyncio.sleep(0)


@asynccontextmanager
async def recorded(near: FakeNear, rules: dict[str, Any] = EAGER, **options: Any) -> AsyncIterator[tuple[Hybrid, Wire]]:
    """A hybrid that has reached its far side, and what it sends there from then on. ``options`` are those of Far."""
    far, wire = FakeFar(), Wire()
    async with (
        running(far),
        wire.to(far),
        await Hybrid.create(near=near, far=Far(wire.url, **options), policy=rules) as opened,
    ):
        assert b"GET /v1/nearfar/about" in wire.bytes
        wire.bytes, wire.connections = b"", 0
        yield opened, wire
    assert (wire.bytes, wire.connections) == (b"", 0)


@pytest.mark.parametrize(
    "parameters",
    [
        {"messages": QUESTION, "labels": ["private"]},
        {"messages": [*QUESTION, {"role": "assistant", "content": "x", "labels": ["private"]}, *QUESTION]},
        {"messages": [{"role": "user", "content": SECRET}]},
        {"messages": [{"role": "system", "content": IN_PARTS}, *QUESTION]},
        {
            "messages": [
                *QUESTION,
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "ok"},
            ]
        },
        {"messages": QUESTION, "tools": [TOOL]},
        {
            "messages": QUESTION,
            "tools": [TOOL_OF_A_NAME],
            "tool_choice": {"type": "function", "function": {"name": "123-45-6789"}},
        },
        {"messages": QUESTION, "stop": [SECRET]},
        {"messages": [{"role": "user", "content": "hi", "name": "123-45-6789"}]},
        {
            "messages": QUESTION,
            "response_format": {"type": "json_schema", "json_schema": {"schema": {"const": SECRET}}},
        },
    ],
)
def test_a_private_request_is_answered_near_and_nothing_is_sent(parameters: dict[str, Any]) -> None:
    async def work() -> None:
        async with recorded(FakeNear()) as (opened, _):
            answer = await opened.chat.completions.create(**parameters)
            assert answer.route is not None
            assert (answer.route.side, answer.route.reason) == ("near", "private")

    run(work())


@pytest.mark.parametrize(
    ("near", "hedge"),
    [
        (FakeNear(error=DeviceError("lost")), None),
        (FakeNear(error=DeviceError("lost"), error_at=3), None),
        (FakeNear(hangs_at=0), None),
        (FakeNear(hangs_at=0), 1),
        (FakeNear(logprobs=(-9.0,) * 9, error=DeviceError("lost"), error_at=6), None),
    ],
)
def test_a_private_answer_never_leaves_however_near_fails(near: FakeNear, hedge: int | None) -> None:
    timeouts = {"hedge_after_ms": hedge, "near_first_token_ms": 300}
    rules = {**EAGER, "timeouts": timeouts, **({} if hedge is None else {"mode": "prefer-near"})}

    async def work() -> None:
        async with recorded(near, rules) as (opened, _):
            with pytest.raises(NearfarError):
                await opened.chat.completions.create(messages=[{"role": "user", "content": SECRET}])

    run(work())


def test_private_text_that_near_wrote_does_not_leave() -> None:
    near = FakeNear("123-45-6789 it is", logprobs=(-0.1,) * 11 + (-9.0,))
    rules = {
        **EAGER,
        "mode": "prefer-near",
        "escalation": {"then": "continue", "min_mean_logprob": -1.0, "window_tokens": 1},
    }

    async def work() -> None:
        async with recorded(near, rules) as (opened, _):
            answer = await opened.chat.completions.create(messages=QUESTION)
            assert answer.choices[0].message.content == "123-45-6789 it is"
            assert answer.route is not None
            assert (answer.route.side, answer.route.reason) == ("near", "prefer")

    run(work())


def test_private_text_that_near_completed_does_not_leave() -> None:
    near = FakeNear("6789 it is", logprobs=(-0.1,) * 4 + (-9.0,))
    rules = {
        **EAGER,
        "mode": "prefer-near",
        "escalation": {"then": "continue", "min_mean_logprob": -1.0, "window_tokens": 1},
    }
    begun = [*QUESTION, {"role": "assistant", "content": "123-45-"}]

    async def work() -> None:
        async with recorded(near, rules) as (opened, _):
            answer = await opened.chat.completions.create(messages=begun, continue_final_message=True)
            assert answer.choices[0].message.content == "6789 it is"

    run(work())


def test_private_text_that_near_completed_from_the_question_does_not_leave() -> None:
    near = FakeNear("6789 it is", logprobs=(-0.1,) * 4 + (-9.0,))
    rules = {
        **EAGER,
        "mode": "prefer-near",
        "escalation": {"then": "continue", "min_mean_logprob": -1.0, "window_tokens": 1},
    }

    async def work() -> None:
        async with recorded(near, rules) as (opened, _):
            answer = await opened.chat.completions.create(messages=[{"role": "user", "content": "go on: 123-45-"}])
            assert answer.choices[0].message.content == "6789 it is"

    run(work())


def test_a_private_request_pinned_to_far_is_an_error() -> None:
    async def work() -> None:
        async with recorded(FakeNear()) as (opened, _):
            with pytest.raises(RequestError) as raised:
                await opened.chat.completions.create(messages=[{"role": "user", "content": SECRET}], pin="far")
            assert raised.value.details["code"] == "private"
            assert SECRET not in raised.value.message

    run(work())


@pytest.mark.parametrize(("text", "url"), [("hi", "https://here/123-45-6789.png"), (SECRET, "https://here/a.png")])
def test_a_private_image_is_sent_to_no_side(text: str, url: str) -> None:
    near = FakeNear()
    parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]

    async def work() -> None:
        async with recorded(near, vision=True) as (opened, _):
            with pytest.raises(RequestError) as raised:
                await opened.chat.completions.create(messages=[{"role": "user", "content": parts}])
            # Near may answer, but does not read images.
            assert raised.value.details["code"] == "vision"

    run(work())
    assert near.requests == []


PNG = "data:image/png;base64,iVBORw0KGgo="
PICTURE = {"type": "image_url", "image_url": {"url": PNG}}
SEE = {"id": "c1", "type": "function", "function": {"name": "see", "arguments": "{}"}}
# Of these requests, no text matches a pattern.
WITH_PICTURES: dict[str, list[dict[str, Any]]] = {
    "last": [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, PICTURE]}],
    "earlier": [{"role": "user", "content": [PICTURE]}, {"role": "assistant", "content": "a cat"}, *QUESTION],
    "of a tool": [
        *QUESTION,
        {"role": "assistant", "tool_calls": [SEE]},
        {"role": "tool", "tool_call_id": "c1", "content": [PICTURE]},
    ],
    "in a text": [{"role": "user", "content": f"what is ![it]({PNG})?"}],
    "with codecs": [{"role": "user", "content": "what is in data:video/webm; codecs=vp8,opus;base64,GkXfow==?"}],
}
KEEPING = [EAGER, policy("prefer-far", private={"media": "near"}, escalation={"then": "restart", "warm": "always"})]


@pytest.mark.parametrize("rules", KEEPING, ids=["patterns", "media"])
@pytest.mark.parametrize("messages", WITH_PICTURES.values(), ids=WITH_PICTURES.keys())
def test_a_picture_is_answered_near_and_nothing_is_sent(messages: list[dict[str, Any]], rules: dict[str, Any]) -> None:
    async def work() -> None:
        async with recorded(FakeNear(sees=True), rules, vision=True) as (opened, _):
            answer = await opened.chat.completions.create(messages=messages)
            assert answer.route is not None
            assert (answer.route.side, answer.route.reason) == ("near", "media")
            chunks = [chunk async for chunk in await opened.chat.completions.create(messages=messages, stream=True)]
            assert chunks[-2].route is not None
            assert chunks[-2].route.side == "near"

    run(work())


@pytest.mark.parametrize(
    ("near", "hedge"),
    [
        (FakeNear(sees=True, error=DeviceError("lost")), None),
        (FakeNear(sees=True, error=DeviceError("lost"), error_at=3), None),
        (FakeNear(sees=True, error=Unavailable("busy")), None),
        (FakeNear(sees=True, hangs_at=0), 1),
        (FakeNear(sees=True, logprobs=(-9.0,) * 9, error=DeviceError("lost"), error_at=6), None),
    ],
)
def test_a_picture_never_leaves_however_near_fails(near: FakeNear, hedge: int | None) -> None:
    """Near fails at once, in mid-answer and again at the retry, is late, unsure, and then has an open circuit."""
    timeouts = {"near_first_token_ms": 300, **({} if hedge is None else {"hedge_after_ms": hedge})}
    rules = {**EAGER, "mode": "prefer-near", "timeouts": timeouts, "retries": 1, "breaker": {"failures": 1}}

    async def work() -> None:
        async with recorded(near, rules, vision=True) as (opened, _):
            for _ in range(3):
                with pytest.raises(NearfarError):
                    await opened.chat.completions.create(messages=WITH_PICTURES["last"])
            with pytest.raises(NearfarError):
                async for _ in await opened.chat.completions.create(messages=WITH_PICTURES["earlier"], stream=True):
                    pass

    run(work())


@pytest.mark.parametrize("messages", [*WITH_PICTURES.values()][:3])
def test_a_picture_that_near_cannot_see_is_an_error_that_says_where_it_is(messages: list[dict[str, Any]]) -> None:
    at = next(index for index, each in enumerate(messages) if isinstance(each.get("content"), list))

    async def work() -> None:
        async with recorded(FakeNear(), vision=True) as (opened, _):
            with pytest.raises(RequestError, match=rf"a picture \(messages\[{at}\].content") as raised:
                await opened.chat.completions.create(messages=messages)
            assert raised.value.details["code"] == "vision"
            assert "private.media" in raised.value.message
            with pytest.raises(RequestError) as raised:
                await opened.chat.completions.create(messages=messages, pin="far")
            assert raised.value.details["code"] == "media"

    run(work())


def test_bytes_of_a_picture_in_a_completion_s_prompt_do_not_leave() -> None:
    far, wire = FakeFar(), Wire()

    async def work() -> None:
        async with running(far), wire.to(far), gateway(FakeNear(), Far(wire.url, vision=True), EAGER) as app:
            wire.bytes, wire.connections = b"", 0
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
                bodies = ({"prompt": f"see {PNG}"}, {"prompt": [ord(character) for character in PNG]})
                for body in bodies:
                    answer = await client.post("/v1/completions", json={"model": "tiny", **body})
                    assert answer.json()["route"]["reason"] == "media"

    run(work())
    assert (wire.bytes, wire.connections) == (b"", 0)


@pytest.mark.parametrize("sees", [True, False])
def test_the_gateway_lets_no_picture_leave(sees: bool) -> None:
    far, wire = FakeFar(), Wire()

    async def work() -> None:
        async with running(far), wire.to(far), gateway(FakeNear(sees=sees), Far(wire.url, vision=True), EAGER) as app:
            wire.bytes, wire.connections = b"", 0
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
                for messages in [*WITH_PICTURES.values()][:3]:
                    for stream in (False, True):
                        body = {"model": "tiny", "messages": messages, "stream": stream}
                        answer = await client.post("/v1/chat/completions", json=body)
                        assert answer.status_code == (200 if sees else 400), answer.text
                        assert sees or answer.json()["error"]["code"] == "vision"

    run(work())
    assert (wire.bytes, wire.connections) == (b"", 0)


def test_the_url_of_an_image_is_searched_but_not_its_bytes() -> None:
    def texts(url: str) -> tuple[str, ...]:
        parts = [{"type": "image_url", "image_url": {"url": url, "detail": "low"}}]
        return texts_of(read_request({"model": "tiny", "messages": [{"role": "user", "content": parts}]}))[1]

    assert texts("data:image/png;base64,1234567890ab+/==") == ("data:image/png;base64,",)
    for text in (
        "https://here/a.png",
        "data:image/png;base64,123-45-6789",
        "data:image/png;base64,my number",
        "data:image/svg+xml,<svg/>",
    ):
        assert text in texts(text)


def test_other_requests_run_while_a_long_text_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pattern backtracks endlessly, so the search takes its maximum time."""
    monkeypatch.setattr(privacy, "SEARCH_SECONDS", 0.3)
    turns = 0

    async def work() -> None:
        nonlocal turns
        async with recorded(FakeNear(context=10**6), policy("prefer-far", private={"patterns": ["(a+)+b"]})) as (
            opened,
            _,
        ):
            answer = asyncio.create_task(
                opened.chat.completions.create(messages=[{"role": "user", "content": "a" * 300_000}])
            )
            while not answer.done():
                await asyncio.sleep(0.005)
                turns += 1
            route = (await answer).route
            assert route is not None
            assert route.reason == "private"

    run(work())
    assert turns > 10


@pytest.mark.parametrize(
    "given",
    [
        {"guided_choice": ["a", SECRET]},
        {"guided_json": {"title": SECRET}},
        {"guided_json": json.dumps({"title": SECRET}, ensure_ascii=True).replace("-", "\\u002d")},
        {"structured_outputs": {"grammar": SECRET}},
        {"chat_template_kwargs": {"about": [{"user": SECRET}]}},
    ],
)
def test_formats_and_template_variables_are_searched(given: dict[str, Any]) -> None:
    request = read_request({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **given})
    assert any(SECRET in text for text in texts_of(request)[1])


def test_private_texts_reach_neither_far_nor_the_gateway_s_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    far, wire, near = FakeFar(), Wire(), FakeNear("the answer to it")

    async def work() -> None:
        async with running(far), wire.to(far), gateway(near, Far(wire.url), EAGER) as app:
            wire.bytes, wire.connections = b"", 0
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
                body = {"model": "tiny", "messages": [{"role": "user", "content": SECRET}]}
                answers = [
                    await client.post("/v1/chat/completions", json=body),
                    await client.post("/v1/completions", json={"model": "tiny", "prompt": SECRET}),
                    await client.post("/v1/completions", json={"model": "tiny", "prompt": [ord(c) for c in SECRET]}),
                ]
                assert [answer.json()["route"]["reason"] for answer in answers] == ["private"] * 3
                near.error = DeviceError("lost")
                assert (await client.post("/v1/chat/completions", json=body)).status_code == 500
                # Near does not embed.
                refused = await client.post("/v1/embeddings", json={"model": "tiny", "input": ["x", SECRET]})
                assert refused.json()["error"]["code"] == "near_unavailable"

    run(work())
    assert (wire.bytes, wire.connections) == (b"", 0)
    lines = [f"{record.getMessage()} {record.__dict__}" for record in caplog.records]
    assert any("/v1/chat/completions" in line for line in lines)
    assert not [line for line in lines if "123-45" in line or "my number" in line or "the answer" in line]
