"""Sends one honest request over HTTP. Returns its answer in a comparable form, and its time."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import httpx

from .honest_requests import HonestRequest

TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """``answer`` is None unless the status is 200. ``error`` is the message of the server or of the client."""

    kind: str
    status: int
    seconds: float
    answer: str | None = None
    error: str = ""


def make_client(url: str, key: str, connections: int) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    return httpx.AsyncClient(
        base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=TIMEOUT_SECONDS, limits=limits
    )


async def send(client: httpx.AsyncClient, request: HonestRequest) -> Outcome:
    started = time.perf_counter()
    try:
        response = await client.post(request.path, json=request.body)
    except httpx.HTTPError as error:
        return Outcome(request.kind, 0, time.perf_counter() - started, error=repr(error))
    seconds = time.perf_counter() - started
    if response.status_code != 200:
        return Outcome(request.kind, response.status_code, seconds, error=response.text[:500])
    try:
        answer = folded(response.text) if request.streams else compared(response.json())
    except (ValueError, KeyError, TypeError) as error:
        return Outcome(request.kind, 200, seconds, error=f"{error!r}: {response.text[:500]}")
    return Outcome(request.kind, 200, seconds, answer)


async def leave(client: httpx.AsyncClient, request: HonestRequest, chunks: int) -> int:
    """Stream an answer and close the connection after some chunks. Returns the status."""
    async with client.stream("POST", request.path, json={**request.body, "stream": True}) as response:
        async for _ in response.aiter_lines():
            chunks -= 1
            if chunks < 0:
                break
        return response.status_code


def compared(answer: dict[str, Any]) -> str:
    """The parts of a complete answer that must always be equal, as JSON: not its id, its time, or its wait in the
    queue.
    """
    if "choices" not in answer:
        return json.dumps({name: answer.get(name) for name in ("data", "tokens", "count")})
    choices = []
    for choice in sorted(answer["choices"], key=lambda each: each["index"]):
        message = choice.get("message", {})
        calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls") or ()]
        choices.append(
            [choice.get("text", message.get("content")), calls, choice["finish_reason"], choice.get("logprobs")]
        )
    return json.dumps([choices, answer["usage"]["completion_tokens"]])


def folded(stream: str) -> str:
    """The same parts of a streamed answer. Raises ValueError if the stream breaks off."""
    events = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        raise ValueError("the stream broke off")
    texts: dict[int, list[str]] = {}
    finishes: dict[int, str] = {}
    for event in events[:-1]:
        chunk = json.loads(event)
        if "error" in chunk:
            raise ValueError(chunk["error"]["message"])
        for choice in chunk["choices"]:
            delta = choice.get("delta", {})
            pieces = texts.setdefault(choice["index"], [])
            pieces.append(choice.get("text") or delta.get("content") or "")
            for call in delta.get("tool_calls") or ():
                pieces.append(json.dumps(call.get("function")))
            if choice["finish_reason"] is not None:
                finishes[choice["index"]] = choice["finish_reason"]
    return json.dumps([["".join(texts[index]), finishes[index]] for index in sorted(texts)])
