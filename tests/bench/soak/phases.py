"""One phase of the soak test: all honest clients run for some time, and each answer is compared with the one given
alone.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from .client import Outcome, leave, make_client, send
from .honest_requests import BAD, CHAT, HonestRequest, new_schema
from .servers import HONEST_KEYS

# Percentages of a client's requests that hang up half-way, that are invalid, and that have a new schema.
LEAVING, WRONG, NEW_SCHEMAS = 5, 5, 5


@dataclass
class Phase:
    outcomes: list[Outcome] = field(default_factory=list)
    equal: int = 0
    differences: list[str] = field(default_factory=list)
    left: Counter[int] = field(default_factory=Counter)
    wrong_answered: int = 0
    wrong_status: list[str] = field(default_factory=list)
    broken_connections: int = 0
    seconds: float = 0.0

    @property
    def statuses(self) -> Counter[int]:
        return Counter(outcome.status for outcome in self.outcomes) + self.left

    @property
    def compared(self) -> int:
        return sum(outcome.status == 200 for outcome in self.outcomes)

    def percentile(self, share: float, kind: str | None = None) -> float:
        """Seconds of complete answers of all kinds or of one kind."""
        seconds = sorted(
            outcome.seconds for outcome in self.outcomes if outcome.status == 200 and kind in (None, outcome.kind)
        )
        return seconds[min(len(seconds) - 1, int(share * len(seconds)))] if seconds else float("nan")


async def answers_alone(url: str, requests: Sequence[HonestRequest]) -> dict[HonestRequest, str]:
    """The answer to each request while no other request runs. Raises AssertionError if one is not answered."""
    answers: dict[HonestRequest, str] = {}
    async with make_client(url, HONEST_KEYS[0], 1) as client:
        for request in requests:
            outcome = await send(client, request)
            assert outcome.answer is not None, (request, outcome)
            answers[request] = outcome.answer
    return answers


async def run_phase(
    url: str, expected: Mapping[HonestRequest, str], clients: int, seconds: float, think_seconds: float, seed: int
) -> Phase:
    phase = Phase()
    started = time.monotonic()

    async def one(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        requests = list(expected)
        async with make_client(url, HONEST_KEYS[number % len(HONEST_KEYS)], 1) as client:
            while time.monotonic() - started < seconds:
                await asyncio.sleep(rng.expovariate(1 / think_seconds) if think_seconds else 0)
                draw = rng.randrange(100)
                request = rng.choice(requests)
                if draw < LEAVING and request.path == CHAT:
                    await _leave(client, request, rng.randrange(4), phase)
                elif draw < LEAVING + WRONG:
                    await _send_invalid(client, rng, phase)
                elif draw < LEAVING + WRONG + NEW_SCHEMAS:
                    await _send_new_schema(client, rng.randrange(1 << 40), phase)
                else:
                    _compare(request, await send(client, request), expected[request], phase)

    await asyncio.gather(*(one(number) for number in range(clients)))
    phase.seconds = time.monotonic() - started
    return phase


def _compare(request: HonestRequest, outcome: Outcome, expected: str, phase: Phase) -> None:
    phase.outcomes.append(outcome)
    if outcome.status != 200:
        return
    if outcome.answer == expected:
        phase.equal += 1
    else:
        phase.differences.append(f"{request.body}: {outcome.answer or outcome.error}, alone {expected}"[:1000])


async def _send_new_schema(client: httpx.AsyncClient, number: int, phase: Phase) -> None:
    request, value = new_schema(number)
    outcome = await send(client, request)
    phase.outcomes.append(outcome)
    if outcome.answer is None:
        return
    (text, *_), *_ = json.loads(outcome.answer)[0]
    if json.loads(text) == value:
        phase.equal += 1
    else:
        phase.differences.append(f"{request.body}: {text}")


async def _leave(client: httpx.AsyncClient, request: HonestRequest, chunks: int, phase: Phase) -> None:
    try:
        phase.left[await leave(client, request, chunks)] += 1
    except httpx.HTTPError:
        phase.broken_connections += 1


async def _send_invalid(client: httpx.AsyncClient, rng: random.Random, phase: Phase) -> None:
    path, body, status = rng.choice(BAD)
    try:
        response = await client.post(path, json=body)
    except httpx.HTTPError:
        phase.broken_connections += 1
        return
    if response.status_code == status:
        phase.wrong_answered += 1
    else:
        phase.wrong_status.append(
            f"{response.status_code} instead of {status} for {str(body)[:100]}: {response.text[:200]}"
        )
