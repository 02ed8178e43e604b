"""Checks that `nearfar serve --executor upstream` in front of llama-cpp-python's server answers, streams and maps
errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from serving_process import Process, nearfar_serve

from nearfar.server_fallback.bench.workload import WORDS

MAX_TOKENS = 12
QUESTION = {"messages": [{"role": "user", "content": "what is the time"}], "max_tokens": MAX_TOKENS, "temperature": 0}
TIMEOUT_SECONDS = 120.0


def check_upstream(upstream: Process, model: str, context: int, log: Path) -> Iterator[tuple[str, bool, str]]:
    """Yield the name of each check, whether it holds, and the actual result. Stops the upstream at the end."""
    with front_of(upstream, log) as client:
        direct = httpx.post(
            f"{upstream.url}/v1/chat/completions", json={"model": model, **QUESTION}, timeout=TIMEOUT_SECONDS
        ).json()
        expected = direct["choices"][0]["message"]["content"]
        names = [card["id"] for card in client.get("/v1/models").json()["data"]]
        yield "the upstream's model is listed", names == [model], str(names)

        whole = client.post("/v1/chat/completions", json={"model": model, **QUESTION})
        choice = whole.json()["choices"][0]
        yield (
            "a chat has the upstream's answer",
            (choice["message"]["content"], choice["finish_reason"]) == (expected, "length"),
            whole.text,
        )
        usage = whole.json()["usage"]
        # Our requests to the upstream are streams, in which it does not report usage, so pieces are counted.
        yield "its tokens are counted", usage["completion_tokens"] == MAX_TOKENS, str(usage)

        events = stream(client, {"model": model, **QUESTION, "stream": True})
        chunks = [json.loads(event) for event in events[:-1]]
        streamed = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
        yield (
            "a streamed chat has the same text",
            (streamed, events[-1]) == (expected, "[DONE]"),
            f"{streamed!r}, {events[-1]}",
        )
        ends = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
        yield (
            "it arrived in pieces and ends once",
            len(chunks) > MAX_TOKENS // 2 and ends == ["length"],
            f"{len(chunks)} chunks, {ends}",
        )

        text = client.post(
            "/v1/completions", json={"model": model, "prompt": "once", "max_tokens": 4, "temperature": 0}
        )
        yield "a text is completed", text.status_code == 200 and bool(text.json()["choices"][0]["text"]), text.text

        long = {
            "model": model,
            "messages": [{"role": "user", "content": " ".join(WORDS) * (context // 100)}],
            "max_tokens": 4,
        }
        # The upstream aborts such a stream before its first event, so the reason cannot be known.
        yield refused(
            "a prompt that exceeds the window, whose stream the upstream aborts, is a 503",
            client.post("/v1/chat/completions", json=long),
            503,
        )
        yield refused(
            "an unknown model is a 404", client.post("/v1/chat/completions", json={**QUESTION, "model": "none"}), 404
        )
        wrong = client.post("/v1/chat/completions", json={"model": model, **QUESTION, "max_tokens": "many"})
        yield refused("a wrong type is a 400", wrong, 400)

        upstream.stop()
        gone = client.post("/v1/chat/completions", json={"model": model, **QUESTION})
        yield refused("without the upstream it is a 503", gone, 503)
        alive = client.get("/health/live")
        yield "and the server lives", alive.status_code == 200, alive.text


@contextmanager
def front_of(upstream: Process, log: Path) -> Iterator[httpx.Client]:
    arguments = ["--executor", "upstream", "--upstream", upstream.url]
    with nearfar_serve(arguments, log) as front, httpx.Client(base_url=front.url, timeout=TIMEOUT_SECONDS) as client:
        yield client


def stream(client: httpx.Client, body: dict[str, Any]) -> Sequence[str]:
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        return [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]


def refused(what: str, response: httpx.Response, status: int) -> tuple[str, bool, str]:
    """Check that an error has OpenAI's form."""
    found = response.json().get("error") or {}
    return (
        what,
        response.status_code == status and bool(found.get("message")) and "type" in found,
        f"{response.status_code} {response.text}",
    )
