"""Sides that fail, hang, are full or late: there is always one complete answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fake_openai import Received, Reply, text_chunks
from hybrid_sides import FAR_USAGE, QUESTION, FakeFar, FakeNear, ask, completion, hybrid, outcome, policy, run

from nearfar.compiler.runtime.errors import DeviceError, NearfarError, RequestError, Unavailable
from nearfar.server_fallback.schema.chat import ChatCompletionChunk

LOST = DeviceError("the device is lost")


def in_turn(*replies: Reply) -> FakeFar:
    """Sends the replies in turn, and the last one from then on."""
    left: Iterator[Reply] = iter(replies)
    return FakeFar(lambda _: next(left, replies[-1]))


def breaks_off(*texts: str) -> Reply:
    """The connection breaks after these texts."""
    return Reply(chunks=text_chunks(*texts, usage=FAR_USAGE), breaks_after=len(texts) + 1)


def test_near_continues_the_text_of_a_far_side_that_fails() -> None:
    near, far = FakeNear("one two three"), in_turn(breaks_off("one ", "two "))
    answer = ask(near, far, policy("prefer-far"), max_tokens=20, min_tokens=5)
    assert outcome(answer) == ("one two three", "near", "far_failed", 8)
    request = near.requests[0]
    assert request.continue_final_message  # type: ignore[union-attr]
    assert (request.max_tokens, request.min_tokens) == (18, 3)  # type: ignore[union-attr]
    # Both parts are in the usage.
    assert answer.usage.completion_tokens == 2 + 5
    assert len(far.generated) == 1


def test_near_takes_over_from_a_server_that_redirects() -> None:
    far = in_turn(Reply(307, b"", headers={"Location": "http://127.0.0.1:9/v1/chat/completions"}))
    assert outcome(ask(FakeNear("one"), far, policy("prefer-far"))) == ("one", "near", "far_failed", None)
    assert len(far.generated) == 1


def test_far_continues_by_token_ids_if_near_fails() -> None:
    near, far = FakeNear("one two", LOST, error_at=4), FakeFar(lambda _: Reply(chunks=completion("tw", "o")))
    answer = ask(near, far, policy(), max_tokens=20, min_tokens=6, temperature=0.25, stop="x")
    assert outcome(answer) == ("one two", "far", "near_failed", 4)
    assert [received.path for received in far.received if received.path != "/v1/nearfar/about"] == [
        "/tokenize",
        "/v1/completions",
    ]
    assert far.generated[0]["prompt"] == [ord(character) for character in "<hi>one "]
    assert [far.generated[0][name] for name in ("max_tokens", "min_tokens", "temperature", "stop")] == [
        16,
        2,
        0.25,
        "x",
    ]


@pytest.mark.parametrize("other", [{"tools": [{"type": "function", "function": {"name": "f"}}]}, {"logprobs": True}])
def test_requests_that_token_ids_cannot_express_are_continued_as_text(other: dict[str, Any]) -> None:
    near, far = (
        FakeNear("one two", LOST, error_at=4),
        FakeFar(lambda _: Reply(chunks=text_chunks("two", usage=FAR_USAGE))),
    )
    assert outcome(ask(near, far, policy(), **other)) == ("one two", "far", "near_failed", 4)
    assert far.generated[0]["messages"] == [*QUESTION, {"role": "assistant", "content": "one "}]
    assert far.generated[0]["continue_final_message"] is True


def test_an_answer_with_a_format_starts_over_on_the_other_side() -> None:
    near, far = (
        FakeNear("[1, 2]", LOST, error_at=3),
        FakeFar(lambda _: Reply(chunks=text_chunks("[3]", usage=FAR_USAGE))),
    )
    answer = ask(near, far, policy(), response_format={"type": "json_object"})
    assert outcome(answer) == ("[3]", "far", "near_failed", 0)
    assert far.generated[0]["messages"] == QUESTION


def test_no_side_takes_over_after_part_of_a_tool_call() -> None:
    near, far = FakeNear("{}", LOST, error_at=1, calls=True), FakeFar()
    with pytest.raises(DeviceError, match="the device is lost"):
        ask(near, far, policy(), tools=[{"type": "function", "function": {"name": "f"}}])
    assert far.generated == []


def test_a_policy_may_forbid_the_other_side_to_take_over() -> None:
    far = in_turn(breaks_off("one "))
    with pytest.raises(Unavailable, match="the connection broke"):
        ask(FakeNear(), far, policy("prefer-far", fallback={"near_continues": False}))


def test_an_overloaded_far_side_is_retried_once_and_then_near_answers() -> None:
    full = Reply(429, {"error": {"message": "full"}})
    far = in_turn(full, Reply(chunks=text_chunks("well", usage=FAR_USAGE)))
    assert outcome(ask(FakeNear(), far, policy("prefer-far"))) == ("well", "far", "prefer", None)
    far = in_turn(full)
    assert outcome(ask(FakeNear(), far, policy("prefer-far"))) == ("near says", "near", "far_failed", None)
    assert len(far.generated) == 2
    # Waiting for that long would be useless.
    far = in_turn(Reply(429, {"error": {"message": "full"}}, headers={"Retry-After": "30"}))
    assert outcome(ask(FakeNear(), far, policy("prefer-far"))) == ("near says", "near", "far_failed", None)
    assert len(far.generated) == 1


def test_the_client_gets_the_error_of_a_request_that_far_rejects() -> None:
    near, far = FakeNear(), in_turn(Reply(400, {"error": {"message": "no such stop", "param": "stop"}}))
    with pytest.raises(RequestError, match="no such stop") as raised:
        ask(near, far, policy("prefer-far"))
    assert raised.value.details["param"] == "stop"
    assert (len(far.generated), near.requests) == (1, [])


CONTEXT_FULL = Reply(
    400, {"error": {"message": "the maximum context length is 128 tokens", "code": "context_length_exceeded"}}
)


def test_the_client_gets_the_error_of_a_far_side_whose_context_is_full() -> None:
    near, far = FakeNear(), in_turn(CONTEXT_FULL)

    async def work() -> None:
        async with hybrid(near, far, policy("prefer-far", breaker={"failures": 1, "open_ms": 60_000})) as opened:
            # A full context does not open the circuit, so the second request reaches the server too.
            for _ in range(2):
                with pytest.raises(RequestError, match="maximum context length is 128 tokens") as raised:
                    await opened.chat.completions.create(messages=QUESTION)
                assert raised.value.details["code"] == "context_length_exceeded"

    run(work())
    assert (len(far.generated), near.requests) == (2, [])


@pytest.mark.parametrize("then", ["continue", "restart"])
def test_near_finishes_its_answer_if_the_far_context_is_full_after_an_escalation(then: str) -> None:
    near, far = FakeNear("one two three", logprobs=(-0.1, -9.0, -9.0)), in_turn(CONTEXT_FULL)
    rules = policy(escalation={"then": then, "window_tokens": 2, "min_mean_logprob": -3.0, "warm": "never"})
    assert outcome(ask(near, far, rules)) == ("one two three", "near", "prefer", None)
    assert len(far.generated) == 1


def test_nothing_is_sent_to_a_far_side_whose_known_context_is_too_short() -> None:
    near, far = FakeNear(), FakeFar()
    question = [{"role": "user", "content": "x" * 200}]
    assert outcome(ask(near, far, policy("prefer-far"), messages=question)) == ("near says", "near", "context", None)
    assert far.generated == []


def test_a_request_that_far_began_to_answer_is_not_sent_again() -> None:
    far = in_turn(breaks_off("one "), Reply(chunks=text_chunks("again", usage=FAR_USAGE)))
    with pytest.raises(Unavailable):
        ask(None, far, policy("far-only", retries=5))
    assert len(far.generated) == 1


def test_a_late_near_side_loses_to_far_and_is_stopped() -> None:
    near, far = FakeNear(hangs_at=0), FakeFar()
    assert outcome(ask(near, far, policy(timeouts={"hedge_after_ms": 1}))) == ("far says", "far", "near_late", None)
    assert near.closed_early == 1


def test_the_other_side_takes_over_from_a_silent_side() -> None:
    near, far = FakeNear("one two", hangs_at=4, quickly=True), FakeFar(lambda _: Reply(chunks=completion("two")))
    assert outcome(ask(near, far, policy())) == ("one two", "far", "near_timeout", 4)
    hung = FakeFar(lambda _: Reply(hangs=True))
    assert outcome(ask(FakeNear(), hung, policy("prefer-far", timeouts={"far_first_token_ms": 20})))[1:3] == (
        "near",
        "far_timeout",
    )
    with pytest.raises(Unavailable, match="no token came in time") as raised:
        ask(FakeNear(hangs_at=0), None, policy("near-only", timeouts={"near_first_token_ms": 5}))
    assert raised.value.details["code"] == "near_timeout"


def test_if_both_sides_fail_the_last_failure_is_reported() -> None:
    with pytest.raises(DeviceError, match="the device is lost"):
        ask(FakeNear(error=LOST), in_turn(Reply(500, {"error": {"message": "bug"}})), policy("prefer-far"))


def test_a_side_that_fails_gets_no_requests_for_a_while() -> None:
    far = in_turn(Reply(500, {"error": {"message": "bug"}}))

    async def work() -> list[tuple[str, str]]:
        async with hybrid(FakeNear(), far, policy("prefer-far", breaker={"failures": 2, "open_ms": 60_000})) as opened:
            answers = [await opened.chat.completions.create(messages=QUESTION) for _ in range(3)]
        return [outcome(answer)[1:3] for answer in answers]

    assert run(work()) == [("near", "far_failed"), ("near", "far_failed"), ("near", "circuit_open")]
    assert len(far.generated) == 2


def test_one_request_tries_a_side_whose_circuit_was_open() -> None:
    hung = Reply(hangs=True)
    far = in_turn(Reply(500, {"error": {"message": "bug"}}), hung)

    async def work() -> None:
        rules = policy("prefer-far", breaker={"failures": 1, "open_ms": 1})
        async with hybrid(FakeNear(), far, rules) as opened:
            await opened.chat.completions.create(messages=QUESTION)
            await asyncio.sleep(0.01)
            trial = asyncio.create_task(opened.chat.completions.create(messages=QUESTION))
            while len(far.generated) < 2:
                await asyncio.sleep(0)
            assert outcome(await opened.chat.completions.create(messages=QUESTION))[1:3] == ("near", "circuit_open")
            trial.cancel()
            await asyncio.gather(trial, return_exceptions=True)

    run(work())
    assert len(far.generated) == 2


def test_closing_an_answer_stops_both_sides() -> None:
    near, far = FakeNear("one two", hangs_at=4), FakeFar(lambda _: Reply(hangs=True))

    async def work() -> None:
        async with hybrid(near, far, policy(timeouts={"hedge_after_ms": 1})) as opened:
            # The hedge is sent while near has no token yet, and loses.
            near.hangs_at = 0
            stream = await opened.chat.completions.create(messages=QUESTION, stream=True)
            reading = asyncio.create_task(anext(stream))
            while not far.generated:
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await stream.aclose()
            assert near.closed_early == 1
            assert not [task for task in asyncio.all_tasks() if "RunningAnswer" in repr(task)]

    run(work())


def test_a_deadline_ends_the_answer_of_either_side() -> None:
    far = FakeFar(lambda _: Reply(hangs=True))

    async def work() -> None:
        async with hybrid(FakeNear(), far, policy("prefer-far")) as opened:
            await opened.chat.completions.create(messages=QUESTION, timeout_seconds=0.05)

    with pytest.raises(NearfarError) as raised:
        run(work())
    assert raised.value.code == "deadline_exceeded"


def test_the_stream_reports_a_switch_when_it_happens() -> None:
    def reply(_: Received) -> Reply:
        return breaks_off("one ", "two ")

    async def work() -> list[ChatCompletionChunk]:
        async with hybrid(FakeNear("one two three"), FakeFar(reply), policy("prefer-far")) as opened:
            return [chunk async for chunk in await opened.chat.completions.create(messages=QUESTION, stream=True)]

    chunks = run(work())
    said_before = 0
    switch = next(chunk for chunk in chunks if chunk.route is not None and chunk.route.side == "near")
    for chunk in chunks[: chunks.index(switch)]:
        said_before += len(chunk.choices[0].delta.content or "")
    assert switch.route is not None
    assert switch.route.switched_at == said_before == 8
    assert chunks[-1].route == switch.route
