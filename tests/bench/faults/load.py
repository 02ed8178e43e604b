"""The clients: each asks one question after the other, and leaves some of its answers half-way."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import httpx

from .faults import BROKEN
from .questions import ALONE_AT, NotAnAnswer, Question, error_code
from .servers import Server

# Percentages of the requests that hang up half-way, that set a keep_alive if their API has one, and of a client's
# requests that open another connection.
LEAVING, KEEPING, RECONNECTING = 10, 50, 20
KEEP_ALIVE = (0, "1s", "5s", -1)
THINK_SECONDS = 0.2
TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one request. ``text`` is the answer's, None for a failure with ``code`` and ``error``."""

    question: Question
    request_id: str
    began: float
    ended: float
    text: str | None = None
    code: str = ""
    error: str = ""


@dataclass
class Load:
    servers: Mapping[str, Server]
    questions: Sequence[Question]
    outcomes: list[Outcome] = field(default_factory=list)
    left: int = 0

    async def alone(self) -> dict[Question, str]:
        """The answer to each question while no other request runs. Raises AssertionError if one is not answered."""
        answers = {}
        for server in self.servers.values():
            async with _client(server) as client:
                # One model after the other, so that each of the store's is loaded once.
                for question in sorted(self.questions, key=lambda each: str(each.body["model"])):
                    if ALONE_AT.get(question.server, question.server) == server.name:
                        outcome = await _ask(client, question, question.body, "alone", server.keys[0])
                        assert outcome.text is not None, outcome
                        answers[question] = outcome.text
        return answers

    async def run(self, clients: int, until_time: float, seed: int) -> None:
        await asyncio.gather(*(self._one(random.Random(seed * 1000 + each), until_time) for each in range(clients)))

    async def _one(self, rng: random.Random, until_time: float) -> None:
        connected: dict[str, httpx.AsyncClient] = {}
        try:
            while time.monotonic() < until_time:
                await asyncio.sleep(rng.expovariate(1 / THINK_SECONDS))
                question = rng.choice(self.questions)
                server = self.servers[question.server]
                if rng.randrange(100) < RECONNECTING and server.name in connected:
                    await connected.pop(server.name).aclose()
                if server.name not in connected:
                    connected[server.name] = _client(server)
                client, body, key = connected[server.name], question.body, rng.choice(server.keys)
                if question.keeps and rng.randrange(100) < KEEPING:
                    body = {**body, "keep_alive": rng.choice(KEEP_ALIVE)}
                name = str(UUID(int=rng.getrandbits(128)))
                if rng.randrange(100) < LEAVING:
                    await self._leave(client, question, body, key, rng)
                    # Its pool may count a connection that was given up, for which the next request would wait.
                    await connected.pop(server.name).aclose()
                else:
                    self.outcomes.append(await _ask(client, question, body, name, key))
        finally:
            for client in connected.values():
                await client.aclose()

    async def _leave(
        self, client: httpx.AsyncClient, question: Question, body: object, key: str, rng: random.Random
    ) -> None:
        """Close the connection before the answer, or after some of its lines."""
        self.left += 1
        lines, seconds = rng.randrange(6), rng.random() if rng.random() < 0.5 else TIMEOUT_SECONDS
        try:
            async with (
                asyncio.timeout(seconds),
                client.stream("POST", question.path, json=body, headers=_headers(key)) as response,
            ):
                async for _ in response.aiter_lines():
                    lines -= 1
                    if lines < 0:
                        return
        except (TimeoutError, httpx.HTTPError):
            pass


async def _ask(client: httpx.AsyncClient, question: Question, body: object, request_id: str, key: str) -> Outcome:
    began = time.monotonic()

    def outcome(**found: str) -> Outcome:
        return Outcome(question, request_id, began, time.monotonic(), **found)

    headers = {**_headers(key), "X-Request-Id": request_id}
    try:
        response = await client.post(question.path, json=body, headers=headers)
    except httpx.HTTPError as error:
        # A connection that is never answered is lost.
        code = "lost" if isinstance(error, httpx.ReadTimeout) else BROKEN
        return outcome(code=code, error=repr(error))
    if response.status_code != 200:
        return outcome(code=error_code(response.text) or "not typed", error=f"{response.status_code} {response.text}")
    if response.headers["x-request-id"] != request_id:
        return outcome(code="another answer", error=response.headers["x-request-id"])
    try:
        return outcome(text=question.read(response.text))
    except NotAnAnswer as error:
        return outcome(code=error.code or BROKEN, error=str(error)[:1000])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        return outcome(code="another form", error=f"{error!r}: {response.text[:1000]}")


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _client(server: Server) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
    return httpx.AsyncClient(base_url=server.url, verify=server.trust, timeout=TIMEOUT_SECONDS, limits=limits)
