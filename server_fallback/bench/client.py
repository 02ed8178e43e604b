"""Client: sends streamed requests to a server as OpenAI's clients do, and records when each piece of the answer
arrives.

Each of ``concurrency`` workers sends one request after the other, so the server always has that number of requests
until the end.
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

from nearfar.compiler.runtime.errors import NearfarError, RequestError, Unavailable

from ..executors.refusal import refusal, streamed_error
from ..executors.sse import events
from .workload import LoadRequest

TIMEOUT_SECONDS = 600.0
PROBE_WORDS = 200


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times in seconds. ``gaps`` are the times between the pieces of an answer. ``error`` is None after success;
    otherwise the other fields are 0.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    time_to_first_token: float = 0.0
    total: float = 0.0
    gaps: tuple[float, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """``url`` without /v1. ``extra`` is added to the body of each request."""

    url: str
    client: httpx.AsyncClient
    model: str
    extra: Mapping[str, Any]

    async def send(self, request: LoadRequest) -> Outcome:
        try:
            return await self._send(request)
        except httpx.HTTPError as error:
            return Outcome(error=f"{type(error).__name__}: {error}".rstrip(": "))
        except NearfarError as error:
            return Outcome(error=error.message)

    async def _send(self, request: LoadRequest) -> Outcome:
        # Not a system message: some chat templates reject those.
        text = f"{request.prefix} {request.prompt}".lstrip()
        body = {
            "model": self.model, "messages": [{"role": "user", "content": text}], "max_tokens": request.max_tokens,
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
                    if any(has_content(choice) for choice in chunk.get("choices") or ()):
                        times.append(perf_counter())
                else:
                    raise Unavailable("the answer stopped before its end")
        ended = perf_counter()
        if not times:
            raise Unavailable("the answer had no text")
        return Outcome(
            prompt_tokens=usage.get("prompt_tokens") or 0,
            cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
            # If a server reports no usage, each piece counts as one token.
            completion_tokens=usage.get("completion_tokens") or len(times),
            time_to_first_token=times[0] - started,
            total=ended - started,
            gaps=tuple(later - earlier for earlier, later in pairwise(times)),
        )


def has_content(choice: Mapping[str, Any]) -> bool:
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


async def find_model(client: httpx.AsyncClient, url: str, requested: str | None) -> str:
    """The requested model, or the first one that the server lists. Raises Unavailable if the server does not answer,
    RequestError for an unknown name.
    """
    try:
        response = await client.get(f"{url}/v1/models")
    except httpx.HTTPError as error:
        raise Unavailable(
            f"{url}: no server answers at this URL; write http://host:port, and start one with 'nearfar serve MODEL'"
        ) from error
    if not response.is_success:
        raise refusal(url, response, response.text)
    names = [str(card["id"]) for card in response.json()["data"]]
    if not names or (requested is not None and requested not in names):
        raise RequestError(
            f"{url}: the server does not serve {requested or 'any model'}; it serves {', '.join(names) or 'none'}"
        )
    return requested or names[0]


async def tokens_per_word(server: Server, words: str) -> float:
    """The number of tokens per word, measured with two prompt lengths. 1 if the server reports no usage."""
    short, long = [await server.send(LoadRequest("", prompt, 1)) for prompt in (words.split()[0], words)]
    for outcome in (short, long):
        if outcome.error is not None:
            raise Unavailable(f"the first request failed: {outcome.error}")
    tokens = long.prompt_tokens - short.prompt_tokens
    return tokens / (len(words.split()) - 1) if tokens > 0 else 1.0


async def run_load(
    server: Server, requests: Sequence[LoadRequest], concurrency: int, progress: Callable[[], None] = lambda: None
) -> tuple[list[Outcome], float]:
    """The outcomes, in the order of the requests, and the duration of all of them together in seconds."""
    outcomes: list[Outcome | None] = [None] * len(requests)
    rest = iter(enumerate(requests))

    async def work() -> None:
        for index, request in rest:
            outcomes[index] = await server.send(request)
            progress()

    started = perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return [outcome for outcome in outcomes if outcome is not None], perf_counter() - started
