"""Every prepared WGSL kernel case on wgpu (naga) against `compiler/ir/ops`, and the demo model's self-test."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .case_worker import CASE_SECONDS, cannot_run, run_cases, work
from .cases import kernels_file, webgpu_cases
from .prepared import DEMO_WEBGPU
from .report import Report
from .without_tvm import allow_missing_tvm

if TYPE_CHECKING:
    from kernel_harness import LoweredCase

    from .part import Job


def run(job: Job, report: Report) -> None:
    import wgpu  # noqa: F401

    kernels_file(job.prepared)
    adapter = "any" if job.rehearse else "gpu"
    command = [sys.executable, "-m", "gpu_check.wgpu_kernels", str(job.prepared), adapter]
    run_cases(command, report, job.limit(CASE_SECONDS))
    self_test(job.prepared / DEMO_WEBGPU, report)


def self_test(folder: Path, report: Report) -> None:
    from nearfar.compiler.bundle.folder import open_bundle
    from nearfar.compiler.runtime.runner import Limits
    from nearfar.compiler.runtime.trust import largest_deviation
    from nearfar.targets.webgpu.runner import WebGPURunner

    bundle = open_bundle(folder)
    test = bundle.manifest.self_test
    assert test is not None
    for entry in bundle.manifest.activations:
        limits = Limits(tokens=64, sequences=1, rows=64)
        runner = WebGPURunner(bundle, limits=limits, activation=entry.dtype)
        deviation = largest_deviation(runner, test, bundle.manifest.page_size)
        report.add_figures(**{f"self_test_deviation_{entry.dtype}": deviation})
        if not deviation <= test.tolerances[entry.dtype]:
            report.fail(
                f"the self-test on {runner.device}: off by {deviation:.3g}, at most {test.tolerances[entry.dtype]:.3g}"
            )
        runner.close()


def main(folder: Path, *, any_adapter: bool, first: int) -> None:
    """The main function of the worker."""
    allow_missing_tvm()
    from kernel_harness import FEATURES, Gpu

    from nearfar.targets.webgpu.device import preferred_adapter

    adapter = preferred_adapter([FEATURES])
    if adapter is None:
        cannot_run("wgpu finds no Vulkan adapter")
    name = f"{adapter.info['device']} ({adapter.info['backend_type']}, {adapter.info['description']})"
    if adapter.info["adapter_type"] == "CPU" and not any_adapter:
        cannot_run(f"wgpu finds only {name}, which computes on the CPU")
    missing = sorted(set(FEATURES) - set(adapter.features))
    if missing:
        cannot_run(f"{name} lacks {', '.join(missing)}")
    cases = webgpu_cases(folder)
    gpu = Gpu()

    def run_one(case: LoweredCase) -> None:
        for each in case.runs:
            case.check(each, gpu.run(case, each))

    work(
        cases, {"adapter": name, "runs": sum(len(case.runs) for case in cases)}, lambda case: case.name, run_one, first
    )
    gpu.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), any_adapter=sys.argv[2] == "any", first=int(sys.argv[3]))
