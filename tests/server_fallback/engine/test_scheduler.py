"""The scheduler's decisions, against traces that every runtime shares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scheduler_traces import config_of, require_pages, run_trace

from nearfar.server_fallback.engine.scheduler import Scheduler
from nearfar.server_fallback.engine.sequence import Sequence, SequenceParams

NAMES = ("scheduler.json", "scheduler_windows.json", "scheduler_states.json", "scheduler_drafts.json")
FILES = [Path(__file__).parents[2] / "conformance" / name for name in NAMES]
TRACES = [trace for file in FILES for trace in json.loads(file.read_text())["traces"]]


@pytest.mark.parametrize("trace", TRACES, ids=[trace["name"] for trace in TRACES])
def test_the_scheduler_decides_as_in_the_shared_traces(trace: dict[str, Any]) -> None:
    found = run_trace(trace["config"], trace["requests"], require_pages)
    assert found["steps"] == trace["steps"]
    assert found["outputs"] == trace["outputs"]


@pytest.mark.parametrize(("lengths", "unfilled"), [((16,), 0), ((17,), 15), ((1, 16, 31), 15 + 0 + 1)])
def test_only_last_pages_have_unused_positions(lengths: tuple[int, ...], unfilled: int) -> None:
    scheduler = Scheduler(config_of(page_size=16, pages=16, max_tokens=64, max_sequences=4, context=64))
    assert scheduler.kv.unfilled(scheduler.running) == 0
    sequences = [Sequence(id, [id + 1] * length, SequenceParams(8)) for id, length in enumerate(lengths)]
    for sequence in sequences:
        scheduler.add(sequence)
    assert scheduler.kv.unfilled(scheduler.running) == 0
    scheduler.next()
    assert scheduler.kv.unfilled(scheduler.running) == unfilled
    for sequence in sequences:
        scheduler.finish(sequence, None)
    assert scheduler.kv.unfilled(scheduler.running) == 0
