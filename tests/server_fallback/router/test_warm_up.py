"""Far computes the prompt of an answer that near writes: a hand-over finds it in the cache.

Far gets at most one such request, and none that is private.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from byte_executor import ByteExecutor
from fake_models import FakeExecutor, FakeModels
from fake_openai import Reply, running, text_chunks
from hash_runner import PAGE
from hybrid_sides import FAR_USAGE, QUESTION, FakeFar, FakeNear, hybrid, outcome, policy, run
from live_server import live_server

from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.router.answer.warm_up import prompt_only
from nearfar.server_fallback.router.decision.budget import FileLedger
from nearfar.server_fallback.router.decision.situation import Message
from nearfar.server_fallback.router.hybrid import Hybrid
from nearfar.server_fallback.router.sides.far import Far
from nearfar.server_fallback.schema.chat import ChatCompletion, ChatCompletionRequest
from nearfar.server_fallback.schema.completions import CompletionRequest

LONG = [{"role": "user", "content": "what is it that near does not know and far does, which is larger?"}]
# Doubt from the third character on, and escalation with the fourth.
LOGPROBS = (-0.1, -0.1, -1.2, -3.0)


def rules(warm: str, then: str = "continue", mode: str = "prefer-near", **more: Any) -> dict[str, Any]:
    return policy(mode, escalation={"then": then, "warm": warm, "window_tokens": 2, "min_mean_logprob": -1.0}, **more)


@dataclass
class PatientNear(FakeNear):
    """Before its fourth character it waits until a condition is true."""

    until: Callable[[], bool] = lambda: True

    async def _characters(
        self, request: ChatCompletionRequest | CompletionRequest, call: Call, start: int
    ) -> AsyncGenerator[tuple[int, str], None]:
        async for index, character in super()._characters(request, call, start):
            while index == 3 and not self.until():
                await asyncio.sleep(0.002)
            yield index, character


@asynccontextmanager
async def served(near: FakeNear, far: FakeExecutor | ByteExecutor, given: dict[str, Any]) -> AsyncIterator[Hybrid]:
    """A hybrid whose far side is our own server."""
    with live_server(FakeModels(far), ApiConfig()) as server:  # type: ignore[arg-type]
        place = Far(f"http://127.0.0.1:{server.port}", model="fake")
        async with await Hybrid.create(near=near, far=place, policy=given) as opened:
            yield opened


@pytest.mark.parametrize("then", ["continue", "restart"])
@pytest.mark.parametrize("warm", ["never", "doubt", "always"])
def test_a_hand_over_finds_the_prompt_in_fars_cache(warm: str, then: str, tmp_path: Path) -> None:
    async def work() -> None:
        far = ByteExecutor(tmp_path)
        near = PatientNear("abcdef", logprobs=LOGPROBS, until=lambda: warm == "never" or len(far.usages) == 1)
        async with served(near, far, rules(warm, then)) as opened:
            answer: ChatCompletion = await opened.chat.completions.create(
                messages=LONG, stop=["qq"], temperature=0, max_tokens=9
            )
        assert outcome(answer)[1:3] == ("far", "escalated_logprob")
        await far.close()
        handed_over = far.usages[-1].prompt_tokens_details
        assert handed_over is not None
        if warm == "never":
            assert (len(far.usages), handed_over.cached_tokens) == (1, 0)
            return
        prompt = far.usages[0]
        assert (len(far.usages), prompt.completion_tokens) == (2, 1)
        assert handed_over.cached_tokens >= prompt.prompt_tokens // PAGE * PAGE - (then == "restart") * PAGE
        assert handed_over.cached_tokens > 0.9 * prompt.prompt_tokens
        assert (far.requests[0].stop, far.requests[1].stop) == (None, ["qq"])

    run(work())


@dataclass
class OneAfterAnother(FakeExecutor):
    """It computes a prompt until the client has left, and only then answers."""

    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def _said(self, request: ChatCompletionRequest | CompletionRequest, call: Call) -> AsyncGenerator[str, None]:
        if request.max_tokens == 1:
            self.requests.append(request)
            try:
                await asyncio.sleep(3600)
            finally:
                self.left.set()
        await self.left.wait()
        async for piece in super()._said(request, call):
            yield piece


def test_a_warm_up_is_cancelled_when_far_gets_the_request_or_the_answer_ends() -> None:
    async def work(near: FakeNear, expected: tuple[str | None, str]) -> None:
        far = OneAfterAnother()
        near.until = lambda: len(far.requests) == 1  # type: ignore[attr-defined]
        async with served(near, far, rules("always", "restart")) as opened:
            assert outcome(await opened.chat.completions.create(messages=LONG))[:2] == expected
            while not far.left.is_set():
                await asyncio.sleep(0.002)

    run(work(PatientNear("abcdef", logprobs=LOGPROBS), ("Hello!", "far")))
    run(work(PatientNear("abcdef"), ("abcdef", "near")))


def far_knows(opened: Hybrid) -> bool:
    """Whether far is known to have computed the question."""
    return opened.executor.sides._memories["far"].cached_share([Message("user", "hi")], monotonic()) == 1.0


def test_a_warm_up_counts_in_the_budget_is_paid_for_and_computes_only_the_prompt(tmp_path: Path) -> None:
    given = rules(
        "doubt",
        "restart",
        budget={"far_requests_per_day": 2, "far_usd_per_day": 1.0},
        price={"prompt_usd_per_million": 1000.0},
    )
    received: dict[str, Any] = {
        "response_format": {"type": "json_object"},
        "logprobs": True,
        "top_logprobs": 2,
        "stop": "x",
        "max_completion_tokens": 40,
    }

    async def work() -> None:
        ledger, near = FileLedger(tmp_path / "ledger.json"), PatientNear("abcdef", logprobs=LOGPROBS)
        far = FakeFar(lambda _: Reply(chunks=text_chunks("far", usage=FAR_USAGE)))
        async with (
            running(far),
            await Hybrid.create(near=near, far=Far(far.url), policy=given, ledger=ledger) as opened,
        ):
            near.until = lambda: far_knows(opened)
            assert outcome(await opened.chat.completions.create(messages=QUESTION, **received))[:2] == ("far", "far")
        first, second = far.generated
        assert first == {
            "model": "big",
            "messages": QUESTION,
            "max_tokens": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        assert received.items() <= second.items()
        assert "max_tokens" not in second
        assert ledger.today().requests == 2
        assert ledger.today().usd == pytest.approx(2 * FAR_USAGE["prompt_tokens"] / 1000)

    run(work())


@pytest.mark.parametrize(("choice", "warmed"), [("required", None), ("auto", None), ("none", "none")])
def test_a_warm_up_sends_the_tools_but_requires_no_call(choice: str, warmed: str | None) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {
        "model": "big",
        "messages": QUESTION,
        "tools": tools,
        "tool_choice": choice,
        "min_tokens": 5,
        "guided_regex": "a+",
    }
    received = ChatCompletionRequest.model_validate(body)
    alone = prompt_only(received)
    assert isinstance(alone, ChatCompletionRequest)
    assert (alone.tools, alone.tool_choice) == (received.tools, warmed)
    assert (alone.min_tokens, alone.guided_regex) == (None, None)


def test_a_spent_budget_prevents_a_warm_up(tmp_path: Path) -> None:
    async def work() -> None:
        far, near, ledger = FakeFar(), PatientNear("abcdef"), FileLedger(tmp_path / "ledger.json")
        given = rules("always", budget={"far_requests_per_day": 1})
        near.until = lambda: ledger.today().requests == 1 and len(far.generated) == 1
        async with (
            running(far),
            await Hybrid.create(near=near, far=Far(far.url), policy=given, ledger=ledger) as opened,
        ):
            for _ in range(2):
                assert outcome(await opened.chat.completions.create(messages=QUESTION))[:2] == ("abcdef", "near")
        assert len(far.generated) == 1

    run(work())


@pytest.mark.parametrize(
    ("warm", "options", "parameters"),
    [
        ("always", {}, {"labels": ["private"]}),
        ("doubt", {}, {"labels": ["private"]}),
        ("always", {}, {"pin": "near"}),
        ("always", {"dialect": "openai"}, {}),
        ("never", {}, {}),
    ],
)
def test_no_warm_up_is_sent_if_it_is_not_allowed(
    warm: str, options: dict[str, Any], parameters: dict[str, Any]
) -> None:
    async def work() -> list[dict[str, Any]]:
        far = FakeFar()
        async with hybrid(
            FakeNear("abcdef", logprobs=(-0.1, -1.2, -0.3)), far, rules(warm, "restart"), **options
        ) as opened:
            assert outcome(await opened.chat.completions.create(messages=QUESTION, **parameters))[:2] == (
                "abcdef",
                "near",
            )
        return far.generated

    assert run(work()) == []


def test_a_failed_warm_up_is_not_reported() -> None:
    async def work() -> None:
        far = FakeFar(lambda _: Reply(500, {"error": {"message": "bug"}}))
        near = PatientNear("abcdef", until=lambda: len(far.generated) == 1)
        async with hybrid(near, far, rules("always", breaker={"failures": 1})) as opened:
            assert outcome(await opened.chat.completions.create(messages=QUESTION))[:2] == ("abcdef", "near")
            assert opened.executor.sides.circuits["far"].state == "closed"
            assert not far_knows(opened)

    run(work())
