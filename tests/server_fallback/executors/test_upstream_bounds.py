"""The part of an upstream's stream that belongs to the answer, and anything beyond it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_openai import USAGE, chunk, text_chunks
from waiting import WAIT_SECONDS

from nearfar.compiler.runtime.errors import DeviceError, Unavailable
from nearfar.server_fallback.executors import upstream
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.relay import Relay
from nearfar.server_fallback.executors.upstream_bounds import Bounds, bounds_of
from nearfar.server_fallback.schema.chat import ChatCompletionChunk
from nearfar.server_fallback.schema.completions import CompletionRequest
from nearfar.server_fallback.text.output import Chunks

ENDS = Unavailable("broke")
CASES = json.loads((Path(__file__).parents[2] / "conformance" / "answer_bounds.json").read_text())


def answer(*values: Any, bounds: Bounds = Bounds()) -> tuple[dict[int, str], dict[int, str | None], int]:  # noqa: B008
    """The texts and finish reasons of the choices, and the number of completion tokens. Values that are exceptions are
    raised; None hangs.
    """

    async def stream() -> AsyncIterator[bytes]:
        for value in values:
            if value is None:
                await asyncio.sleep(3600)
            if isinstance(value, Exception):
                raise value
            yield f"data: {json.dumps(value)}\n\n".encode()
        yield b"data: [DONE]\n\n"

    texts, ends, tokens = dict[int, str](), dict[int, str | None](), -1

    def add(chunk: ChatCompletionChunk) -> None:
        nonlocal tokens
        for choice in chunk.choices:
            assert ends.get(choice.index) is None
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            ends[choice.index] = choice.finish_reason
        tokens = tokens if chunk.usage is None else chunk.usage.completion_tokens

    async def read() -> None:
        client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200, content=stream())))
        there = upstream.Upstream("http://there", client)
        relay = Relay(ChatCompletionChunk, "ours", bounds, Chunks(add), there.event_object)
        async with asyncio.timeout(WAIT_SECONDS):
            await there.answer("/v1/chat/completions", {}, Call("r"), relay)

    asyncio.run(read())
    return texts, ends, tokens


def pieces(count: int, **usage: int) -> list[Any]:
    return text_chunks(*("x" * count), usage={**USAGE, **usage})


@pytest.mark.parametrize("end", ["content_filter", "recitation"])
def test_any_end_is_an_end(end: str) -> None:
    assert answer(chunk("a"), chunk(finish=end)) == ({0: "a"}, {0: end}, 1)


def test_choices_that_were_not_requested_are_dropped() -> None:
    values = [
        chunk("a"),
        chunk("b", index=1),
        chunk("c", index=-1),
        chunk(finish="stop"),
        chunk(finish="stop", index=1),
    ]
    assert answer(*values) == ({0: "a"}, {0: "stop"}, 1)
    assert answer(*values, bounds=Bounds(choices=2))[:2] == ({0: "a", 1: "b"}, {0: "stop", 1: "stop"})


def test_text_after_the_end_is_left_out_and_the_usage_is_not() -> None:
    values = [*text_chunks("a"), chunk("b"), chunk("c", finish="length"), {**chunk(), "choices": [], "usage": USAGE}]
    assert answer(*values) == ({0: "a"}, {0: "stop"}, 2)
    # A stream that never stops is closed.
    assert answer(*text_chunks("a"), *[chunk("b")] * 50, ENDS)[0] == {0: "a"}


def test_an_answer_is_complete_when_its_end_has_arrived_whatever_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "AFTER_END_SECONDS", 0.01)
    assert answer(*text_chunks("a"), ENDS) == ({0: "a"}, {0: "stop"}, 1)
    assert answer(*text_chunks("a"), None) == ({0: "a"}, {0: "stop"}, 1)
    with pytest.raises(Unavailable):
        answer(chunk("a"), ENDS)


def test_tokens_beyond_the_limit_are_cut() -> None:
    limit = Bounds(tokens=3, counts_pieces=True)
    assert answer(*pieces(3, completion_tokens=3), bounds=limit) == ({0: "xxx"}, {0: "stop"}, 3)
    assert answer(*pieces(4, completion_tokens=4), bounds=limit)[:2] == ({0: "xxx"}, {0: "length"})
    assert answer(*text_chunks(*"xxxx"), bounds=limit)[:2] == ({0: "xxx"}, {0: "length"})
    assert answer(*pieces(9, completion_tokens=3), bounds=limit)[:2] == ({0: "xxx"}, {0: "length"})
    # Text that was held back arrives in a separate piece.
    assert answer(*pieces(4, completion_tokens=3), bounds=limit)[:2] == ({0: "xxxx"}, {0: "stop"})
    # A gateway may send a token in pieces.
    assert answer(*pieces(9), bounds=Bounds(tokens=3))[0] == {0: "x" * 9}
    # An answer without an end is an error.
    with pytest.raises(Unavailable, match="cut off"):
        answer(*[chunk("x")] * 4, bounds=limit)


def test_listed_tokens_are_counted_exactly() -> None:
    two = chunk("ab")
    two["choices"][0]["logprobs"] = {"content": [{"token": "a", "logprob": 0}, {"token": "b", "logprob": 0}]}
    end = chunk(finish="stop")
    assert answer(two, two, end, bounds=Bounds(tokens=4))[:2] == ({0: "abab"}, {0: "stop"})
    assert answer(two, two, end, bounds=Bounds(tokens=3))[:2] == ({0: "ab"}, {0: "length"})


def test_the_bounds_are_those_of_the_request() -> None:
    def bounds(**rest: Any) -> Bounds:
        return bounds_of(CompletionRequest.model_validate({"model": "m", "max_tokens": 5, **rest}), "nearfar")

    assert bounds(prompt="a", n=2) == Bounds(2, 5, counts_pieces=True)
    assert bounds(prompt=[1, 2, 3]) == Bounds(1, 5, counts_pieces=True)
    assert bounds(prompt=["a", "b"], n=2, echo=True) == Bounds(4, None, counts_pieces=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_an_answer_is_cut_at_max_tokens_whatever_its_length_claims_to_be(case: dict[str, Any]) -> None:
    usage = (
        []
        if case["counted"] is None
        else [{**chunk(), "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": case["counted"]}}]
    )
    values = [*(chunk(piece) for piece in case["pieces"]), chunk(finish="stop"), *usage]
    bounds = Bounds(tokens=case["limit"], counts_pieces=case["counts_pieces"])
    assert answer(*values, bounds=bounds)[:2] == ({0: case["text"]}, {0: case["finish_reason"]})


@pytest.mark.parametrize(("status", "message"), [(200, "more than 0 MB"), (500, "x" * 100)])
def test_an_answer_without_end_is_read_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch, status: int, message: str
) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 1000:
            sent += 1
            yield b"x" * 100

    async def ask() -> None:
        client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(status, content=endless())))
        await upstream.Upstream("http://there", client).request("POST", "/v1/embeddings", {}, Call("r"))

    monkeypatch.setattr(upstream, "MAX_ANSWER_BYTES", 350)
    monkeypatch.setattr(upstream, "MAX_ERROR_BYTES", 350)
    with pytest.raises(DeviceError, match=message):
        asyncio.run(ask())
    assert sent == 4
