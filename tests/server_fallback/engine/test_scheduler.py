"""The scheduler's decisions, against traces that every runtime shares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scheduler_traces import require_pages, run_trace

TRACES = json.loads((Path(__file__).parents[2] / "conformance/scheduler.json").read_text())["traces"]


@pytest.mark.parametrize("trace", TRACES, ids=[trace["name"] for trace in TRACES])
def test_the_scheduler_decides_as_the_shared_traces_say(trace: dict[str, Any]) -> None:
    found = run_trace(trace["config"], trace["requests"], require_pages)
    assert found["steps"] == trace["steps"]
    assert found["outputs"] == trace["outputs"]
