"""Runs `nearfar serve` with the demo model on the GPU, and several clients at once with complete and streamed
requests.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from serving_process import nearfar_serve

from .prepared import DEMO

# Tasks of the demo model; its README states how well it does them.
ANSWERS = {"what is 27 + 58?": "27 + 58 = 85", "what is 12 + 30?": "12 + 30 = 42"}
CLIENTS = 16


def main(folder: Path, log: Path) -> int:
    """Returns the exit code: 1 if an answer is wrong."""
    questions = [*ANSWERS] * CLIENTS
    with nearfar_serve([str(folder / DEMO)], log) as server:

        def ask(number: int) -> tuple[str, str]:
            question = questions[number]
            body = {
                "model": DEMO,
                "messages": [{"role": "user", "content": question}],
                "temperature": 0,
                "max_tokens": 32,
            }
            return question, text_of(server.url, {**body, "stream": number % 3 == 0})

        started = time.monotonic()
        with ThreadPoolExecutor(CLIENTS) as pool:
            found = list(pool.map(ask, range(len(questions))))
        wrong = {(question, answer) for question, answer in found if answer != ANSWERS[question]}
        ready = httpx.get(f"{server.url}/health/ready").text
    print(
        f"{len(found)} answers in {time.monotonic() - started:.2f} s, {len(wrong)} wrong ones: {sorted(wrong)}; {ready}"
    )
    return int(bool(wrong))


def text_of(url: str, body: dict[str, Any]) -> str:
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).raise_for_status()
    if not body["stream"]:
        return str(response.json()["choices"][0]["message"]["content"])
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
