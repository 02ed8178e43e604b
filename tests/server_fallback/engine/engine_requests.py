"""Helpers that run requests on a token engine over the hash model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from hash_runner import MODEL, HashRunner
from scheduler_traces import pools_of
from waiting import WAIT_SECONDS

from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.request import AnswerEnd, GeneratedToken, TokenRequest
from nearfar.server_fallback.engine.token_engine import TokenEngine

T = TypeVar("T")


LIMITS = Limits(tokens=8, sequences=4, rows=4, pages=24)


# The hash model gives these prompts long answers.
PROMPT = [13, 2, 3, 13, 10, 1, 5, 13, 1, 14]


OTHERS = [[10, 12, 15], [15, 7, 12, 13]]


def run(work: Awaitable[T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(work, WAIT_SECONDS)

    return asyncio.run(bounded())


@asynccontextmanager
async def engine_on(runner: HashRunner, config: EngineConfig | None = None, **model: Any) -> AsyncIterator[TokenEngine]:
    engine = TokenEngine(runner, replace(MODEL, **model), config)
    try:
        yield engine
    finally:
        await engine.close()
        assert runner.closed


async def collect(
    engine: TokenEngine, prompt: list[int] = PROMPT, **request: Any
) -> tuple[list[GeneratedToken], AnswerEnd]:
    tokens: list[GeneratedToken] = []
    async for item in engine.generate(TokenRequest(prompt, **{"max_tokens": 6, **request})):
        if isinstance(item, AnswerEnd):
            return tokens, item
        assert isinstance(item, GeneratedToken)
        tokens.append(item)
    raise AssertionError("the answer has no end")


class Gate:
    """`HashRunner.hold` that no step passes until the gate is opened: what a test does before is done in the middle of
    an answer, however fast or slow each thread is.
    """

    def __init__(self) -> None:
        self._opened = Event()

    def __call__(self, _: int) -> None:
        assert self._opened.wait(WAIT_SECONDS)

    def open(self) -> None:
        self._opened.set()

    def close(self) -> None:
        self._opened.clear()


class Arrival:
    """`HashRunner.fail` of a runner whose first batch waits until all requests have arrived, however slow the machine
    is.
    """

    def __init__(self) -> None:
        self._all_arrived = Event()

    def __call__(self, batch: int) -> None:
        if batch == 0:
            assert self._all_arrived.wait(WAIT_SECONDS)

    async def gather(self, *answers: Coroutine[Any, Any, T]) -> list[T]:
        """The results of answers that are requested together."""
        tasks = [asyncio.ensure_future(answer) for answer in answers]
        # Each of them sends its request.
        await asyncio.sleep(0)
        self._all_arrived.set()
        return list(await asyncio.gather(*tasks))


async def ids(engine: TokenEngine, prompt: list[int] = PROMPT, **request: Any) -> list[int]:
    return [token.token_id for token in (await collect(engine, prompt, **request))[0]]


async def settle(engine: TokenEngine) -> None:
    """Wait until nothing runs."""
    while engine.stats().running or engine.stats().waiting:
        await asyncio.sleep(0.001)


def require_no_page_held(engine: TokenEngine) -> None:
    for pool in pools_of(engine._loop.scheduler):
        assert pool.free + len(pool.idle) == pool.size
        assert pool.idle == pool.nodes


@dataclass(slots=True, weakref_slot=True)
class EvenTokens:
    """Allows only even tokens without the stop token; the answer has four tokens."""

    accepted: list[int] = field(default_factory=list)
    complete: bool = False

    def mask(self) -> npt.NDArray[np.int32] | None:
        return np.array([0b0101_0101_0101_0100], np.int32)

    def accept(self, token_id: int) -> None:
        self.accepted.append(token_id)

    @property
    def finished(self) -> bool:
        return len(self.accepted) == 4
