"""`bench-web-gpu`: tokens per second on Dawn, and the share of the device's copy speed, at a model's shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .cases import WEBGPU
from .dawn import find_adapter, run_tool
from .prepared import bundle_name
from .random_weights import with_random_weights
from .report import Report
from .sizes import sizes

if TYPE_CHECKING:
    from .part import Job


def run(job: Job, report: Report, model: str) -> None:
    find_adapter(report, any_adapter=job.rehearse)
    folder = job.prepared / bundle_name(model, WEBGPU)
    with_random_weights(folder)
    options = sizes(rehearse=job.rehearse).web_options
    found = run_tool("bench_gpu", str(folder), *options, timeout_seconds=job.limit(150))
    report.add_figures(**found)
