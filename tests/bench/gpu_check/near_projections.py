"""`bench-kernels`: the projections of a layer on Dawn by kernel, with their share of the device's copy speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from .dawn import find_adapter, run_node
from .prepared import PROJECTIONS_FILE
from .report import Report

if TYPE_CHECKING:
    from .part import Job

SCRIPT = Path(__file__).resolve().parents[1] / "bench_kernels.mjs"


def run(job: Job, report: Report) -> None:
    find_adapter(report, any_adapter=job.rehearse)
    request, answer = job.prepared / PROJECTIONS_FILE, job.work / "answer.json"
    run_node(SCRIPT, str(request), str(answer), timeout_seconds=job.limit(60))
    found = json.loads(answer.read_text())
    copy = found["copyBytesPerSecond"]
    kernels = []
    for case, seconds in zip(json.loads(request.read_text())["cases"], found["seconds"], strict=True):
        row = {"name": case["name"], "rows": case["rows"], "needs": case["needs"]}
        # The device lacks what the kernel needs.
        if seconds is not None:
            rate = case["bytes"] / seconds
            row |= {
                "microseconds": seconds * 1e6,
                "bytes_per_second": rate,
                "of_copy_bandwidth": rate / copy,
                "operations_per_second": case["operations"] / seconds,
            }
        kernels.append(row)
    report.add_figures(copy_bytes_per_second=copy, kernels=kernels)
