"""Client: asks a server as OpenAI's clients do, streaming, and notes when what came.

As many workers as the concurrency says ask one after the other, so the server always has that many requests, until the last.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any

import httpx

from nearfar.compiler.errors import NearfarError, RequestError, Unavailable

from ..executors.refusal import refusal, streamed_error
from ..executors.sse import events
from .workload import Ask

TIMEOUT_SECONDS = 600.0
PROBE_WORDS = 200


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times in seconds. ``gaps`` lie between the pieces of an answer. ``error`` None where all went well; else the rest is 0."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    time_to_first_token: float = 0.0
    total: float = 0.0
    gaps: tuple[float, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """``url`` without /v1. ``extra`` goes into the body of each request."""

    url: str
    client: httpx.AsyncClient
    model: str
    extra: Mapping[str, Any]

    async def ask(self, ask: Ask) -> Outcome:
        try:
            return await self._ask(ask)
        except httpx.HTTPError as error:
            return Outcome(error=f"{type(error).__name__}: {error}".rstrip(": "))
        except NearfarError as error:
            return Outcome(error=error.message)

    async def _ask(self, ask: Ask) -> Outcome:
        # Not a system message: some chat templates refuse those.
        text = f"{ask.prefix} {ask.prompt}".lstrip()
        body = {
            "model": self.model, "messages": [{"role": "user", "content": text}], "max_tokens": ask.max_tokens,
            "stream": True, "stream_options": {"include_usage": True}, **self.extra,
        }  # fmt: skip
        times: list[float] = []
        usage: Mapping[str, Any] = {}
        started = perf_counter()
        async with self.client.stream("POST", f"{self.url}/v1/chat/completions", json=body) as response:
            if not response.is_success:
                raise refusal(self.url, response, (await response.aread()).decode(errors="replace"))
            async with aclosing(events(response.aiter_bytes())) as source:
                async for data in source:
                    if data == "[DONE]":
                        break
                    chunk = json.loads(data)
                    if isinstance(chunk.get("error"), dict):
                        raise streamed_error(self.url, chunk["error"])
                    usage = chunk.get("usage") or usage
                    if any(says_something(choice) for choice in chunk.get("choices") or ()):
                        times.append(perf_counter())
                else:
                    raise Unavailable("the answer stopped before its end")
        ended = perf_counter()
        if not times:
            raise Unavailable("the answer had no text")
        return Outcome(
            prompt_tokens=usage.get("prompt_tokens") or 0,
            cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
            # A server without usage sends a token a piece, or so we must think.
            completion_tokens=usage.get("completion_tokens") or len(times),
            time_to_first_token=times[0] - started,
            total=ended - started,
            gaps=tuple(later - earlier for earlier, later in pairwise(times)),
        )


def says_something(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(
        delta.get("content") or delta.get("tool_calls") or delta.get("reasoning_content") or delta.get("reasoning")
    )


def make_client(api_key: str | None) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=TIMEOUT_SECONDS,
        limits=httpx.Limits(max_connections=None),
    )


async def find_model(client: httpx.AsyncClient, url: str, wanted: str | None) -> str:
    """The model that is wanted, or the first that the server lists. Raises Unavailable without an answer, RequestError for another name."""
    try:
        response = await client.get(f"{url}/v1/models")
    except httpx.HTTPError as error:
        raise Unavailable(
            f"{url}: no server answers there; write http://host:port, and start one with 'nearfar serve MODEL'"
        ) from error
    if not response.is_success:
        raise refusal(url, response, response.text)
    names = [str(card["id"]) for card in response.json()["data"]]
    if not names or (wanted is not None and wanted not in names):
        raise RequestError(f"{url}: does not serve {wanted or 'any model'}; it serves {', '.join(names) or 'none'}")
    return wanted or names[0]


async def tokens_per_word(server: Server, words: str) -> float:
    """How many tokens the model's tokenizer makes of a word, by asking with two lengths. 1 where the server tells no usage."""
    short, long = [await server.ask(Ask("", prompt, 1)) for prompt in (words.split()[0], words)]
    for outcome in (short, long):
        if outcome.error is not None:
            raise Unavailable(f"the first request failed: {outcome.error}")
    tokens = long.prompt_tokens - short.prompt_tokens
    return tokens / (len(words.split()) - 1) if tokens > 0 else 1.0


async def run_load(
    server: Server, asks: Sequence[Ask], concurrency: int, progress: Callable[[], None] = lambda: None
) -> tuple[list[Outcome], float]:
    """The outcomes, in the order of the asks, and the seconds that all took together."""
    outcomes: list[Outcome | None] = [None] * len(asks)
    rest = iter(enumerate(asks))

    async def work() -> None:
        for index, ask in rest:
            outcomes[index] = await server.ask(ask)
            progress()

    started = perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return [outcome for outcome in outcomes if outcome is not None], perf_counter() - started
