"""The knowledge about both sides before a decision: the far side's queue, and the part of a prompt that each side has
computed before.
"""

from __future__ import annotations

from typing import Any

import pytest
from fake_openai import Reply, text_chunks
from hybrid_sides import ABOUT, FAR_USAGE, FakeFar, FakeNear, hybrid, policy, run

from nearfar.compiler.runtime.errors import DeviceError
from nearfar.server_fallback.router.decision.policy import Policy
from nearfar.server_fallback.router.decision.situation import Situation
from nearfar.server_fallback.router.hybrid import Hybrid, read_request
from nearfar.server_fallback.router.hybrid_executor import situation_of
from nearfar.server_fallback.router.sides.far import FarQueue
from nearfar.server_fallback.router.sides.sides import Sides
from nearfar.server_fallback.router.sides.texts import texts_of
from nearfar.server_fallback.schema.chat import ChatCompletion
from nearfar.server_fallback.schema.common import Usage

QUEUE = "x-nearfar-queue-ms"
FIRST = [{"role": "user", "content": "sixteen letters."}]
WEATHER = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


async def situation(opened: Hybrid, messages: list[Any]) -> Situation:
    request = read_request({"model": "hybrid", "messages": messages})
    return await opened.executor.sides.situation(situation_of(request, texts_of(request)[0], (), ()), request)


async def cached(opened: Hybrid, messages: list[Any]) -> tuple[int, int]:
    now = await situation(opened, messages)
    return now.near.cached_tokens, now.far.cached_tokens


def answered(text: str) -> list[dict[str, str]]:
    return [*FIRST, {"role": "assistant", "content": text}, {"role": "user", "content": "And now?"}]


def test_only_the_side_that_answered_has_the_conversation_cached() -> None:
    async def work() -> None:
        async with hybrid(FakeNear("near"), FakeFar(), policy("prefer-near")) as opened:
            assert await cached(opened, FIRST) == (0, 0)
            await opened.chat.completions.create(messages=FIRST)
            # First 18 tokens in total. Then 34 tokens from 16 + 4 + 8 characters, 20 of which are known.
            assert await cached(opened, FIRST) == (18, 0)
            assert await cached(opened, answered("near")) == (34 * 20 // 28, 0)
            await opened.chat.completions.create(messages=answered("near"), pin="far")
            assert await cached(opened, answered("near")) == (34 * 20 // 28, 34)

    run(work())


def test_only_near_has_a_private_conversation_cached() -> None:
    async def work() -> tuple[int, int]:
        async with hybrid(FakeNear("near"), FakeFar(), policy("prefer-far")) as opened:
            await opened.chat.completions.create(messages=FIRST, labels=["private"])
            return await cached(opened, FIRST)

    assert run(work()) == (18, 0)


def test_far_has_the_complete_conversation_that_it_continued() -> None:
    near = FakeNear("near", error=DeviceError("gone"), error_at=2)
    far = FakeFar(lambda _: Reply(chunks=text_chunks("xt", usage=FAR_USAGE)))

    async def work() -> tuple[int, int]:
        # Another tokenizer, so that far continues from the text.
        far.about = Reply(value={"api_version": 1, "models": [{**ABOUT, "tokenizer_sha256": "other"}]})
        async with hybrid(near, far, policy("prefer-near")) as opened:
            answer: ChatCompletion = await opened.chat.completions.create(messages=FIRST)
            assert answer.choices[0].message.content == "next"
            return await cached(opened, answered("next"))

    assert run(work()) == (0, 34 * 20 // 28)


def test_a_tool_call_is_part_of_the_cached_conversation() -> None:
    async def work() -> tuple[int, int]:
        async with hybrid(FakeNear("{}", calls=True), None, policy("near-only")) as opened:
            answer: ChatCompletion = await opened.chat.completions.create(messages=FIRST, tools=[WEATHER])
            message = answer.choices[0].message
            same = await cached(opened, [*FIRST, message])
            assert message.tool_calls is not None
            message.tool_calls[0].function.arguments = '{"a":1}'
            return same[0], (await cached(opened, [*FIRST, message]))[0]

    whole, changed = run(work())
    # All 18, and the 6 of a message without a content.
    assert whole == 24
    assert 0 < changed < whole


def test_the_far_queue_is_the_server_s_last_report() -> None:
    reports = iter(["1500", "40"])

    def reply(_: object) -> Reply:
        return Reply(chunks=text_chunks("hi", usage=FAR_USAGE), headers={QUEUE: next(reports)})

    async def work() -> list[float]:
        far = FakeFar(reply)
        far.about = Reply(value=far.about.value, headers={QUEUE: "250"})
        async with hybrid(FakeNear(), far, policy("prefer-far")) as opened:
            seconds = [(await situation(opened, FIRST)).far.queue_seconds]
            for _ in range(2):
                await opened.chat.completions.create(messages=FIRST)
                seconds.append((await situation(opened, FIRST)).far.queue_seconds)
            return seconds

    assert run(work()) == [0.25, 1.5, 0.04]


@pytest.mark.parametrize(
    ("usage", "known"),
    [({}, True), ({"queue_ms": None}, True), ({"queue_ms": 3_600_000}, False), ({"queue_ms": -1}, True)],
)
def test_the_wait_in_fars_queue_does_not_count_towards_fars_speed(usage: dict[str, Any], known: bool) -> None:
    async def work() -> float | None:
        far = FakeFar(
            lambda _: Reply(chunks=text_chunks("far ", "says", usage={**FAR_USAGE, **usage}), seconds_between=0.001)
        )
        async with hybrid(FakeNear(), far, policy("prefer-far")) as opened:
            answer: ChatCompletion = await opened.chat.completions.create(messages=FIRST)
            assert answer.usage.queue_ms == (None if known else 3_600_000)
            return (await situation(opened, FIRST)).far.decode_tokens_per_second

    # The wait of one hour is longer than the answer took, so no time remains.
    assert (run(work()) is not None) == known


def test_queue_time_is_subtracted_for_either_side() -> None:
    sides = Sides(None, None, Policy.read(policy("auto")))
    usage = Usage(prompt_tokens=500, completion_tokens=11, total_tokens=511, queue_ms=1500)
    sides.record_finished("far", usage, 11, 2.0, 3.0)
    sides.record_finished("near", usage.model_copy(update={"queue_ms": None}), 11, 2.0, 3.0)
    speeds = [
        (sides._speeds[side]["prefill_tokens_per_second"], sides._speeds[side]["decode_tokens_per_second"])
        for side in ("far", "near")
    ]
    assert speeds == [(1000.0, 10.0), (250.0, 10.0)]


@pytest.mark.parametrize("header", ["", "-5", "1.5", "1e3", "soon", "٣", "9" * 13])
def test_an_invalid_queue_header_is_ignored(header: str) -> None:
    queue = FarQueue()
    queue.update({"X-Nearfar-Queue-Ms": "700"}, 0.0)
    queue.update({"X-Nearfar-Queue-Ms": header}, 1.0)
    assert queue.seconds(30.0) == 0.7
    assert queue.seconds(30.5) == 0.0
