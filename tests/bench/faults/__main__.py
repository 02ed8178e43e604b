"""`make faults`: 32 clients of five APIs ask two real servers, and a gateway with workers, while
faults hit these.

    make faults MINUTES=10

It exits with 0 if every criterion of `verdict.py` holds and with 1 otherwise. It writes build/faults/faults.json and
the servers' logs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from bench_compile import machine
from rich.console import Console

from .faults import Faults
from .load import Load
from .questions import questions
from .servers import DECODE, PREFILL, Server, servers
from .verdict import BUGS, Verdict
from .watch import Memory, end, left_over, transfers

ROOT = Path(__file__).resolve().parents[3]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "faults")
    options = parser.parse_args()
    console = Console(width=150)
    console.print("compiling models that are not cached, and starting the servers", highlight=False)
    with servers(options.folder, {}) as running:
        verdict = run(running, 60 * options.minutes, options.clients, options.seed)
    written = {"machine": machine(), "clients": options.clients, **verdict.to_json()}
    (options.folder / "faults.json").write_text(json.dumps(written, indent=1))
    verdict.print(console)
    sys.exit(not all(each.holds for each in verdict.criteria()))


def run(running: Mapping[str, Server], seconds: float, clients: int, seed: int) -> Verdict:
    asked = questions()
    load, faults = Load(running, asked), Faults(running, seed)
    # The prefill worker is started again and again.
    memory = Memory({name: server for name, server in running.items() if name != PREFILL})

    async def work() -> None:
        until = time.monotonic() + seconds
        await asyncio.gather(load.run(clients, until, seed), faults.run(until))

    expected = asyncio.run(load.alone())
    memory.start()
    asyncio.run(work())
    memory.stop()
    wrong = [*faults.mistakes, *(each for server in running.values() for each in left_over(server))]
    prefilled = transfers(running[DECODE])
    wrong += [each for server in reversed([*running.values()]) for each in end(server)]
    # A gateway's requests are in the logs of its workers, too.
    answering = [running[name] for name in {question.server for question in asked}]
    answered = Counter(line["request_id"] for server in answering for line in server.lines("request"))
    bugs = [f"{server.name}: {line}" for server in running.values() for event in BUGS for line in server.lines(event)]
    return Verdict(
        seconds=seconds,
        expected=expected,
        outcomes=load.outcomes,
        left=load.left,
        faults=faults.happened,
        answered=answered,
        transfers=prefilled,
        growth=memory.growth(),
        memory=memory.samples,
        wrong=wrong,
        bugs=bugs,
    )


if __name__ == "__main__":
    main()
