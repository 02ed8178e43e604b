"""Chats that lose their oldest turns until they fit."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.fitted_chat import answer_fitting
from nearfar.server_fallback.schema.chat import ChatCompletionRequest


class Small:
    """Has room for a number of characters."""

    def __init__(self, room: int) -> None:
        self.room, self.tried = room, list[list[str]]()

    async def answer(self, request: ChatCompletionRequest, call: Call, output: Any) -> None:  # noqa: ARG002
        self.tried.append([message.text for message in request.messages])
        if sum(map(len, self.tried[-1])) > self.room:
            raise RequestError("too long", param="messages", code="context_length_exceeded")


def chat(*messages: tuple[str, str]) -> ChatCompletionRequest:
    given = [
        {"role": role, "content": text, **({"tool_call_id": "a"} if role == "tool" else {})} for role, text in messages
    ]
    return ChatCompletionRequest.model_validate({"model": "m", "messages": given})


TURNS = [("system", "s"), ("user", "aaaa"), ("assistant", "b"), ("tool", "c"), ("user", "dd"), ("user", "ee")]


def fit(room: int, request: ChatCompletionRequest, *, drops: bool = True) -> Small:
    small = Small(room)
    asyncio.run(answer_fitting(cast(Any, small), request, Call("id"), cast(Any, None), drops=drops))
    return small


@pytest.mark.parametrize(
    ("room", "left"), [(11, ["s", "aaaa", "b", "c", "dd", "ee"]), (10, ["s", "dd", "ee"]), (4, ["s", "ee"])]
)
def test_the_oldest_turns_are_left_out_whole(room: int, left: list[str]) -> None:
    assert fit(room, chat(*TURNS)).tried[-1] == left


def test_the_last_turn_stays_and_nothing_is_left_out_unasked() -> None:
    for room, drops in ((2, True), (10, False)):
        with pytest.raises(RequestError, match="too long"):
            fit(room, chat(*TURNS), drops=drops)


def test_a_long_chat_is_tried_a_few_times() -> None:
    small = fit(500, chat(*[("user", "x" * 10)] * 1000))
    assert len(small.tried) < 40
    assert 400 <= sum(map(len, small.tried[-1])) <= 500
