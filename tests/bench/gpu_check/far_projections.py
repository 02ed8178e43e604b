"""`bench_cuda_projections.py`: every candidate of CUDA's projection kernels for few rows, and the rules' choice."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .prepared import CUDA_PROJECTIONS
from .report import Report
from .sizes import sizes

if TYPE_CHECKING:
    from .part import Job


def run(job: Job, report: Report) -> None:
    import cuda.bindings.driver  # noqa: F401
    from bench_cuda_projections import Timing, measure, print_best

    from nearfar.targets.cuda.driver import NvidiaDriver

    driver = NvidiaDriver()
    report.add_figures(device=driver.name)
    timings: list[Timing] = []
    rows: list[dict[str, Any]] = []
    chosen = sizes(rehearse=job.rehearse)
    folder = job.prepared / CUDA_PROJECTIONS
    for measured in measure(folder, driver, repeats=chosen.far_repeats, cold_bytes=chosen.cold_bytes):
        timings += measured
        rows += map(asdict, measured)
        report.add_figures(candidates=rows)
    driver.close()
    print_best(timings)
