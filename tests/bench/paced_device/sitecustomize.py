"""A device of a known speed: with this folder on PYTHONPATH, each step of a cpu bundle takes as long as the costs in
NEARFAR_PACED_COSTS say (JSON of `StepCosts`), however busy the machine is, if it would take less. As on a GPU, a step
that was submitted before the one before it ended begins at that moment, even if this process is scheduled later.

Processes that a server starts inherit both variables. So a real server, with its processes, its scheduler and HTTP, has
devices whose speed depends on nothing.

With NEARFAR_PACED_TIMELINE, a path, each engine also writes when a prompt reached it, when its first step began, and
when its first token was read: lines of JSON in PATH.PROCESS-ID, which `simulator_timeline.py` reads.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

COSTS, TIMELINE = "NEARFAR_PACED_COSTS", "NEARFAR_PACED_TIMELINE"
# Random tokens, of which no two prompts have the same ones at the start.
KEY_TOKENS = 8


def pace(costs: Mapping[str, Any]) -> None:
    from nearfar.compiler.runtime.batch import Batch
    from nearfar.server_fallback.simulate.costs import StepCosts
    from nearfar.server_fallback.simulate.measure import shape_of_batch
    from nearfar.targets.cpu.runner import CpuRunner

    paced = StepCosts(tuple((at, cost) for at, cost in costs["knots"]), costs["row"], costs["read"], costs["pair"])
    send, compute = CpuRunner._send, CpuRunner._run
    # A process has one runner. When the steps that have not begun were submitted, and when the device is free.
    submitted = deque[float]()
    free_at = 0.0

    def sent(self: CpuRunner, plan: str, batch: Any, dims: Mapping[str, int], result: Any) -> Any:
        if isinstance(batch, Batch):
            submitted.append(time.perf_counter())
        return send(self, plan, batch, dims, result)

    def run(self: CpuRunner, plan: str, batch: Any, dims: Mapping[str, int]) -> None:
        nonlocal free_at
        if not isinstance(batch, Batch):
            compute(self, plan, batch, dims)
            return
        free_at = max(submitted.popleft(), free_at) + paced.seconds(shape_of_batch(batch))
        compute(self, plan, batch, dims)
        time.sleep(max(0.0, free_at - time.perf_counter()))

    CpuRunner._send = sent  # type: ignore[method-assign]
    CpuRunner._run = run  # type: ignore[method-assign]


def record(path: Path) -> None:
    """Write the events of this process's engine. A prompt is known by its first tokens, and the clock is that of all
    processes of the machine.
    """
    from nearfar.compiler.runtime.batch import Batch
    from nearfar.compiler.runtime.runner import Output
    from nearfar.server_fallback.engine.answer import Answer
    from nearfar.server_fallback.engine.encode_job import EncodeJob
    from nearfar.server_fallback.engine.engine_loop import EngineLoop
    from nearfar.server_fallback.engine.inbox import Inbox
    from nearfar.server_fallback.engine.scheduler import Scheduler
    from nearfar.server_fallback.engine.sequence import Sequence
    from nearfar.server_fallback.engine.step import Event, Step
    from nearfar.targets.cpu.runner import CpuRunner

    # The sequences that begin with each submitted step, until the device begins it.
    submitted: deque[list[Sequence]] = deque()
    add, submit, commit, compute = Inbox.add, EngineLoop._submit, Scheduler.commit, CpuRunner._run

    def write(event: str, prompt: Any) -> None:
        with Path(f"{path}.{os.getpid()}").open("a") as file:
            file.write(json.dumps([event, list(prompt[:KEY_TOKENS]), time.perf_counter()]) + "\n")

    def added(self: Inbox, item: Answer | EncodeJob) -> None:
        if isinstance(item, Answer) and item.request.export is None:
            write("reached", item.request.prompt_ids)
        add(self, item)

    def submitting(self: EngineLoop, step: Step) -> Future[Output]:
        submitted.append([sequence for sequence in step.admitted if sequence.params.prefill_end is None])
        return submit(self, step)

    def run(self: CpuRunner, plan: str, batch: Any, dims: Mapping[str, int]) -> None:
        if isinstance(batch, Batch) and submitted:
            for sequence in submitted.popleft():
                write("began", sequence.tokens)
        compute(self, plan, batch, dims)

    def committed(self: Scheduler, step: Step, token_ids: Any) -> list[Event]:
        events = commit(self, step, token_ids)
        for event in events:
            if event.kind == "token" and event.sequence.generated == 1:
                write("first", event.sequence.tokens)
        return events

    Inbox.add = added  # type: ignore[method-assign]
    EngineLoop._submit = submitting  # type: ignore[method-assign]
    Scheduler.commit = committed  # type: ignore[method-assign]
    CpuRunner._run = run  # type: ignore[method-assign]


if COSTS in os.environ:
    pace(json.loads(os.environ[COSTS]))
    if TIMELINE in os.environ:
        record(Path(os.environ[TIMELINE]))
