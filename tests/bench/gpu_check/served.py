"""`nearfar serve` with the demo model on the GPU: many clients at once, with complete and streamed requests, get the
answers that each request gets alone, which are those of the reference.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from .prepared import DEMO_CUDA, QUESTIONS_FILE
from .questions import MAX_TOKENS
from .report import Report
from .sizes import sizes

if TYPE_CHECKING:
    from .part import Job

# Each client sends all questions in turn, starting with a different one, but at most this number.
QUESTIONS_EACH = 4


def run(job: Job, report: Report) -> None:
    import cuda.bindings.driver  # noqa: F401
    import httpx
    from serving_process import nearfar_serve

    questions = json.loads((job.prepared / QUESTIONS_FILE).read_text())
    expected = {each["question"]: each["text"] for each in questions}
    clients = sizes(rehearse=job.rehearse).clients
    log = job.work / "server.log"
    try:
        with nearfar_serve([str(job.prepared / DEMO_CUDA), "--max-sequences", str(clients)], log) as server:
            alone = {}
            started = time.monotonic()
            for question, answer in expected.items():
                alone[question] = ask(httpx, server.url, question, streamed=False)
                if alone[question] != answer:
                    report.fail(f"alone, {question!r} gets {alone[question]!r} instead of {answer!r}")
            report.add_figures(questions=len(expected), alone_seconds=round(time.monotonic() - started, 3))

            def client(number: int) -> list[tuple[str, str]]:
                order = [questions[(number + i) % len(questions)]["question"] for i in range(QUESTIONS_EACH)]
                return [(each, ask(httpx, server.url, each, streamed=number % 3 == 0)) for each in order]

            started = time.monotonic()
            with ThreadPoolExecutor(clients) as pool:
                found = [pair for pairs in pool.map(client, range(clients)) for pair in pairs]
            seconds = time.monotonic() - started
            wrong = sorted({(question, answer) for question, answer in found if answer != alone[question]})
            for question, answer in wrong:
                report.fail(f"among {clients} clients, {question!r} gets {answer!r}, alone {alone[question]!r}")
            report.add_figures(
                clients=clients,
                answers=len(found),
                wrong_answers=len(wrong),
                seconds=round(seconds, 3),
                answers_per_second=round(len(found) / seconds, 1),
            )
            ready = httpx.get(f"{server.url}/health/ready")
            if ready.status_code != 200:
                report.fail(f"the server is not ready afterwards: {ready.text}")
    finally:
        if log.exists():
            print(log.read_text(errors="replace"))


def ask(httpx: Any, url: str, question: str, *, streamed: bool) -> str:
    body = {
        "model": DEMO_CUDA,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "stream": streamed,
    }
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=100).raise_for_status()
    if not streamed:
        return str(response.json()["choices"][0]["message"]["content"])
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
