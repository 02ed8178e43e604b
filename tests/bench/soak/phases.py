"""One phase of the soak: all honest clients for some time, each answer compared with that given alone."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from .asks import BAD, CHAT, Ask, new_schema
from .client import Outcome, leave, make_client, send
from .servers import HONEST_KEYS

# Of a hundred requests of a client: those that leave in the middle, those that are wrong, and those with a schema of their own.
LEAVING, WRONG, NEW_SCHEMAS = 5, 5, 5


@dataclass
class Phase:
    outcomes: list[Outcome] = field(default_factory=list)
    equal: int = 0
    differences: list[str] = field(default_factory=list)
    left: Counter[int] = field(default_factory=Counter)
    wrong_answered: int = 0
    wrong_mistaken: list[str] = field(default_factory=list)
    broken_connections: int = 0
    seconds: float = 0.0

    @property
    def statuses(self) -> Counter[int]:
        return Counter(outcome.status for outcome in self.outcomes) + self.left

    @property
    def compared(self) -> int:
        return sum(outcome.status == 200 for outcome in self.outcomes)

    def percentile(self, share: float, kind: str | None = None) -> float:
        """Seconds of whole answers, of all kinds or of one."""
        seconds = sorted(
            outcome.seconds for outcome in self.outcomes if outcome.status == 200 and kind in (None, outcome.kind)
        )
        return seconds[min(len(seconds) - 1, int(share * len(seconds)))] if seconds else float("nan")


async def answers_alone(url: str, asks: Sequence[Ask]) -> dict[Ask, str]:
    """What each request is answered while no other runs. Raises AssertionError for one that is not answered."""
    answers: dict[Ask, str] = {}
    async with make_client(url, HONEST_KEYS[0], 1) as client:
        for ask in asks:
            outcome = await send(client, ask)
            assert outcome.answer is not None, (ask, outcome)
            answers[ask] = outcome.answer
    return answers


async def run_phase(
    url: str, expected: Mapping[Ask, str], clients: int, seconds: float, think_seconds: float, seed: int
) -> Phase:
    phase = Phase()
    started = time.monotonic()

    async def one(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        asks = list(expected)
        async with make_client(url, HONEST_KEYS[number % len(HONEST_KEYS)], 1) as client:
            while time.monotonic() - started < seconds:
                await asyncio.sleep(rng.expovariate(1 / think_seconds) if think_seconds else 0)
                draw = rng.randrange(100)
                ask = rng.choice(asks)
                if draw < LEAVING and ask.path == CHAT:
                    await _leave(client, ask, rng.randrange(4), phase)
                elif draw < LEAVING + WRONG:
                    await _ask_wrong(client, rng, phase)
                elif draw < LEAVING + WRONG + NEW_SCHEMAS:
                    await _ask_new_schema(client, rng.randrange(1 << 40), phase)
                else:
                    _compare(ask, await send(client, ask), expected[ask], phase)

    await asyncio.gather(*(one(number) for number in range(clients)))
    phase.seconds = time.monotonic() - started
    return phase


def _compare(ask: Ask, outcome: Outcome, expected: str, phase: Phase) -> None:
    phase.outcomes.append(outcome)
    if outcome.status != 200:
        return
    if outcome.answer == expected:
        phase.equal += 1
    else:
        phase.differences.append(f"{ask.body}: {outcome.answer or outcome.error}, alone {expected}"[:1000])


async def _ask_new_schema(client: httpx.AsyncClient, number: int, phase: Phase) -> None:
    ask, value = new_schema(number)
    outcome = await send(client, ask)
    phase.outcomes.append(outcome)
    if outcome.answer is None:
        return
    (text, *_), *_ = json.loads(outcome.answer)[0]
    if json.loads(text) == value:
        phase.equal += 1
    else:
        phase.differences.append(f"{ask.body}: {text}")


async def _leave(client: httpx.AsyncClient, ask: Ask, chunks: int, phase: Phase) -> None:
    try:
        phase.left[await leave(client, ask, chunks)] += 1
    except httpx.HTTPError:
        phase.broken_connections += 1


async def _ask_wrong(client: httpx.AsyncClient, rng: random.Random, phase: Phase) -> None:
    path, body, status = rng.choice(BAD)
    try:
        response = await client.post(path, json=body)
    except httpx.HTTPError:
        phase.broken_connections += 1
        return
    if response.status_code == status:
        phase.wrong_answered += 1
    else:
        phase.wrong_mistaken.append(
            f"{response.status_code} instead of {status} for {str(body)[:100]}: {response.text[:200]}"
        )
