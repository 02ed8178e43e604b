"""A far side that filters, continues after its end, or sends invalid responses: an end is an end, and near takes over
from a failure.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_openai import Reply, chunk, text_chunks
from hybrid_sides import FAR_USAGE, FakeFar, FakeNear, ask, hybrid, outcome, policy, run

from nearfar.compiler.runtime.errors import RequestError

DEEP = "[" * 100_000 + "]" * 100_000
CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "\ud800"}}


def filtered(*texts: str) -> list[Any]:
    return [*(chunk(text) for text in texts), chunk(finish="content_filter")]


@pytest.mark.parametrize(
    "reply",
    [
        Reply(chunks=[*filtered("one "), {**chunk(), "choices": [], "usage": FAR_USAGE}]),
        Reply(chunks=filtered("one "), breaks_after=2),
        Reply(chunks=[*filtered("one "), {"error": {"message": "filtered", "code": 500}}]),
        Reply(chunks=[*filtered("one "), *[chunk("more")] * 40]),
    ],
)
def test_near_does_not_continue_a_filtered_text(reply: Reply) -> None:
    near = FakeNear("one two")
    answer = ask(near, FakeFar(lambda _: reply), policy("prefer-far"))
    assert outcome(answer) == ("one ", "far", "prefer", None)
    assert answer.choices[0].finish_reason == "content_filter"
    assert near.requests == []


@pytest.mark.parametrize("texts", [(), ("one ",)])
def test_a_server_that_hangs_after_the_finish_reason_has_answered(texts: tuple[str, ...]) -> None:
    sent = filtered(*texts)
    near, far = FakeNear("one two"), FakeFar(lambda _: Reply(chunks=[*sent, chunk(), chunk()], hangs_at=len(sent) + 1))
    answer = ask(near, far, policy("prefer-far"))
    assert (answer.choices[0].finish_reason, near.requests) == ("content_filter", [])


def test_text_beyond_far_s_answer_is_left_out() -> None:
    chunks = [chunk("b", index=1), *text_chunks(*"abcd"), chunk("more")]
    answer = ask(FakeNear(), FakeFar(lambda _: Reply(chunks=chunks)), policy("prefer-far"), max_tokens=2)
    assert outcome(answer) == ("ab", "far", "prefer", None)
    assert [choice.finish_reason for choice in answer.choices] == ["length"]


@pytest.mark.parametrize(
    "reply",
    [
        Reply(404, {"error": {"message": "no such model", "code": "model_not_found"}}),
        Reply(404, b"<html>"),
        Reply(chunks=[chunk("\ud800")]),
        Reply(chunks=[{**chunk(), "choices": [{"index": 0, "delta": {"tool_calls": [CALL]}}]}]),
        Reply(chunks=[DEEP]),
        Reply(chunks=['{"id": "c", "choices": ' + DEEP + "}"]),
        Reply(chunks=["{"]),
        Reply(chunks=["\0"]),
        Reply(chunks=[{"choices": 5}]),
        Reply(chunks=[{"choices": [None]}]),
        Reply(chunks=[{**chunk(), "choices": [{"index": 0, "delta": "x"}]}]),
        Reply(chunks=[{**chunk(), "choices": [{"index": 0, "delta": {"content": 5}}]}]),
        Reply(chunks=[{**chunk(), "choices": [{"index": 0, "delta": {}, "finish_reason": ["stop"]}]}]),
        Reply(500, b"[" * 100_000),
    ],
)
def test_near_takes_over_from_invalid_responses(reply: Reply) -> None:
    assert outcome(ask(FakeNear(), FakeFar(lambda _: reply), policy("prefer-far"))) == (
        "near says",
        "near",
        "far_failed",
        None,
    )


def test_near_continues_if_an_invalid_chunk_follows_a_text() -> None:
    far = FakeFar(lambda _: Reply(chunks=[chunk("near "), chunk("\ud800")]))
    assert outcome(ask(FakeNear(), far, policy("prefer-far"))) == ("near says", "near", "far_failed", 5)


def test_a_wrong_usage_is_not_a_failure() -> None:
    chunks = [
        *text_chunks("hi"),
        {
            **chunk(),
            "choices": [],
            "usage": {"prompt_tokens": "7", "completion_tokens": -1, "prompt_tokens_details": 5},
        },
    ]
    answer = ask(None, FakeFar(lambda _: Reply(chunks=chunks)), policy("far-only"))
    assert (outcome(answer)[0], answer.usage.total_tokens) == ("hi", 0)


def test_an_error_with_invalid_characters_is_still_reported() -> None:
    with pytest.raises(RequestError, match=r"\? is wrong") as raised:
        ask(None, FakeFar(lambda _: Reply(400, b'{"error": {"message": "\\ud800 is wrong"}}')), policy("far-only"))
    assert raised.value.message.isprintable()


@pytest.mark.parametrize(
    "about",
    [Reply(value={"api_version": 9}), Reply(value={"api_version": 1, "models": []}), Reply(404, {}), Reply(401, {})],
)
def test_near_answers_if_far_turns_out_to_be_another_server(about: Reply) -> None:
    far = FakeFar()
    far.about = Reply(503, {})

    async def work() -> None:
        async with hybrid(FakeNear(), far, policy("prefer-far", breaker={"failures": 9, "open_ms": 1})) as opened:
            far.about = about
            # The circuit is open for a moment.
            await asyncio.sleep(0.01)
            answer = await opened.chat.completions.create(messages=[{"role": "user", "content": "hi"}])
            assert outcome(answer)[1:3] == ("near", "far_failed")

    run(work())
