"""Near guesses far's tokens: the answer is far's own in fewer rounds, and requests that cannot be checked are answered
as usual.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from byte_executor import ByteExecutor
from fake_models import FakeModels
from hybrid_sides import FakeNear, outcome, policy, run
from live_server import live_server

from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.router.hybrid import Hybrid
from nearfar.server_fallback.router.sides.far import Far
from nearfar.server_fallback.router.sides.sides import DeviceHints
from nearfar.server_fallback.schema.chat import ChatCompletion, ChatCompletionChunk

RULES = policy("prefer-far", speculation={"draft_tokens": 4})
# The hash model gives this prompt a long answer.
QUESTION = [{"role": "user", "content": "what is it?"}]
GREEDY: dict[str, Any] = {"messages": QUESTION, "temperature": 0, "max_tokens": 24}


@asynccontextmanager
async def pair(
    near: ByteExecutor | FakeNear, far: ByteExecutor, rules: dict[str, Any] = RULES, **options: Any
) -> AsyncIterator[Hybrid]:
    hints = options.pop("hints", DeviceHints())
    with live_server(FakeModels(far), ApiConfig()) as server:  # type: ignore[arg-type]
        place = Far(f"http://127.0.0.1:{server.port}", model="fake", **options)
        async with await Hybrid.create(near=near, far=place, policy=rules, hints=lambda: hints) as opened:
            yield opened
    await far.close()


async def alone(far: ByteExecutor, **received: Any) -> ChatCompletion:
    """Far's own answer, from an engine of its own."""
    async with pair(FakeNear(), far) as opened:
        answer: ChatCompletion = await opened.chat.completions.create(**{**GREEDY, **received})
        return answer


STOPPED: dict[str, Any] = {"stop": "lnm"}
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 7}


@pytest.mark.parametrize(
    ("received", "wrong_every"),
    [
        *(({}, 0), (STOPPED, 3), (SAMPLED, 3)),
        *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in (({}, 3), (STOPPED, 0), (SAMPLED, 0))),
    ],
)
def test_answers_are_fars_own_in_fewer_rounds_than_tokens(
    received: dict[str, Any], wrong_every: int, tmp_path: Path
) -> None:
    async def work() -> None:
        expected = await alone(ByteExecutor(tmp_path / "alone"), **received)
        near, far = ByteExecutor(tmp_path / "near", wrong_every=wrong_every), ByteExecutor(tmp_path / "far")
        async with pair(near, far) as opened:
            assert opened.speculation is not None
            assert opened.speculation.rounds == 0
            answer: ChatCompletion = await opened.chat.completions.create(**{**GREEDY, **received})
            assert answer.choices == expected.choices
            assert outcome(answer)[1:] == ("far", "prefer", None)
            assert answer.usage.total_tokens == expected.usage.total_tokens
            # The wait of its rounds is not reported.
            assert (expected.usage.queue_ms is None, answer.usage.queue_ms) == ("stop" in received, None)
            counts = opened.speculation
            assert 0 < counts.rounds < answer.usage.completion_tokens
            assert counts.accepted > 0
            assert f"near guessed {counts.accepted} of far's {counts.tokens} tokens" in opened.executor.state().detail
            assert far.requests == []

    run(work())


def test_guesses_that_complete_private_text_are_not_sent(tmp_path: Path) -> None:
    async def work() -> None:
        expected = await alone(ByteExecutor(tmp_path / "alone"))
        near, far = ByteExecutor(tmp_path / "near"), ByteExecutor(tmp_path / "far")
        async with pair(near, far, {**RULES, "private": {"patterns": ["[a-z]{6}"]}}) as opened:
            assert (await opened.chat.completions.create(**GREEDY)).choices == expected.choices
            # The first four guesses by themselves are not private.
            assert opened.speculation is not None
            assert opened.speculation.drafted == 4

    run(work())


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    "received",
    [
        {"response_format": {"type": "json_object"}},
        {"tools": [TOOL]},
        {"logprobs": True},
        {"frequency_penalty": 0.5},
        {"logit_bias": {"97": 1.0}},
        {"messages": [*QUESTION, {"role": "assistant", "content": "ab"}], "continue_final_message": True},
        {"pin": "near"},
        {"labels": ["private"]},
    ],
)
def test_only_plain_answers_of_far_are_guessed(received: dict[str, Any], tmp_path: Path) -> None:
    async def work() -> None:
        near, far = ByteExecutor(tmp_path / "near"), ByteExecutor(tmp_path / "far")
        async with pair(near, far) as opened:
            answer = await opened.chat.completions.create(**{**GREEDY, **received})
            side = "near" if {"pin", "labels"} & received.keys() else "far"
            assert outcome(answer)[1] == side
            assert (len(near.requests), len(far.requests)) == ((1, 0) if side == "near" else (0, 1))
            assert opened.speculation is not None
            assert astuple(opened.speculation) == (0,) * 6

    run(work())


@pytest.mark.parametrize(
    ("near", "far", "options"),
    [({}, {"verify": False}, {}), ({"template": "other"}, {}, {}), ({}, {}, {"dialect": "openai"}), (None, {}, {})],
)
def test_far_answers_as_usual_if_near_cannot_guess(
    near: dict[str, Any] | None, far: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    async def work() -> None:
        guessing = FakeNear() if near is None else ByteExecutor(tmp_path / "near", **near)
        there = ByteExecutor(tmp_path / "far", **far)
        async with pair(guessing, there, **options) as opened:
            assert outcome(await opened.chat.completions.create(**GREEDY))[1] == "far"
            assert len(there.requests) == 1
            assert opened.speculation is None or opened.speculation.rounds == 0

    run(work())


def test_near_does_not_guess_if_its_device_must_be_spared(tmp_path: Path) -> None:
    rules = policy("auto", device={"min_battery": 0.2}, speculation={"draft_tokens": 4})

    async def work() -> None:
        near, far = ByteExecutor(tmp_path / "near"), ByteExecutor(tmp_path / "far")
        async with pair(near, far, rules, hints=DeviceHints(battery=0.1, charging=False)) as opened:
            assert outcome(await opened.chat.completions.create(**GREEDY))[1:3] == ("far", "battery")
            assert (len(near.requests), len(far.requests)) == (0, 1)
            assert opened.speculation is not None
            assert opened.speculation.rounds == 0

    run(work())


@pytest.mark.parametrize(
    ("code", "again"),
    [("verify_unavailable", False), ("verify_version", False), ("tokenizer_differs", False), ("else", True)],
)
def test_a_refusal_before_the_first_token_is_not_an_error(code: str, again: bool, tmp_path: Path) -> None:
    async def work() -> None:
        near, far = ByteExecutor(tmp_path / "near"), ByteExecutor(tmp_path / "far", refusal=code)
        async with pair(near, far) as opened:
            for _ in range(2):
                assert outcome(await opened.chat.completions.create(**GREEDY))[1:3] == ("far", "prefer")
            assert len(far.requests) == 2
            assert far.refused == (2 if again else 1)

    run(work())


def test_an_answer_that_is_handed_over_is_not_guessed(tmp_path: Path) -> None:
    rules = policy(
        escalation={"then": "restart", "warm": "never", "min_mean_logprob": -1.0, "window_tokens": 1},
        speculation={"draft_tokens": 4},
    )

    async def work() -> None:
        near, far = ByteExecutor(tmp_path / "near"), ByteExecutor(tmp_path / "far")
        async with pair(near, far, rules) as opened:
            assert outcome(await opened.chat.completions.create(**GREEDY))[1:3] == ("far", "escalated_logprob")
            assert opened.speculation is not None
            assert opened.speculation.rounds == 0

    run(work())


def test_closing_a_guessed_answer_ends_it_on_both_sides(tmp_path: Path) -> None:
    async def work() -> None:
        near, far = ByteExecutor(tmp_path / "near"), ByteExecutor(tmp_path / "far")
        async with pair(near, far) as opened:
            chunks = await opened.chat.completions.create(**{**GREEDY, "stream": True})
            first: ChatCompletionChunk = await anext(chunks)
            assert first.route is not None
            await chunks.aclose()
            for executor in (near, far):
                while executor.state().running or executor.state().waiting:
                    await asyncio.sleep(0.002)

    run(work())
