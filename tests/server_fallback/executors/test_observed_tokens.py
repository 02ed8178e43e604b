"""The observations of a call about its tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from nearfar.server_fallback.engine.request import (
    Completion,
    GeneratedToken,
    PromptLogprobs,
    TokenHandler,
    TokenRequest,
)
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.observed_tokens import ObservedTokens

END = Completion("stop", 1, 3, 0, 0.0, 0.0, 0.0)


class Burst:
    """A source that has generated all tokens before its reader requests one."""

    async def generate(self, request: TokenRequest) -> AsyncGenerator[GeneratedToken | Completion, None]:
        async for batch in self.batches(request):
            for item in batch:
                yield item

    async def batches(
        self,
        _: TokenRequest,
        handle: TokenHandler | None = None,  # noqa: ARG002
    ) -> AsyncGenerator[list[GeneratedToken | Completion], None]:
        yield [GeneratedToken(1), GeneratedToken(2), GeneratedToken(3), END]


async def batches(call: Call) -> list[list[PromptLogprobs | GeneratedToken | Completion]]:
    return [batch async for batch in ObservedTokens(Burst(), call).batches(TokenRequest([0], max_tokens=3))]


def test_a_call_that_observes_tokens_gets_each_as_soon_as_it_has_observed_it() -> None:
    observed: list[int] = []

    async def work() -> None:
        received = 0
        async for batch in ObservedTokens(Burst(), Call("1", observe_token=observed.append)).batches(
            TokenRequest([0], max_tokens=3)
        ):
            received += sum(isinstance(item, GeneratedToken) for item in batch)
            assert len(observed) == received

    asyncio.run(work())
    assert observed == [1, 2, 3]


@pytest.mark.parametrize("call", [Call("1"), Call("1", observe_queue=lambda _: None)])
def test_other_calls_get_a_batch_at_once(call: Call) -> None:
    assert asyncio.run(batches(call)) == [[GeneratedToken(1), GeneratedToken(2), GeneratedToken(3), END]]
