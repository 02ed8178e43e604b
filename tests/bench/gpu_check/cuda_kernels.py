"""Every prepared CUDA kernel case on the device, against `compiler/ir/ops`. Each array has its own device memory,
followed by guard bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .case_worker import CASE_SECONDS, run_cases, work
from .cases import cuda_cases, kernels_file
from .prepared import CUBIN_FILE
from .report import Report

if TYPE_CHECKING:
    from kernel_harness import Run

    from nearfar.targets.cuda.driver import Driver
    from nearfar.targets.cuda.source import CudaKernel

    from .part import Job

# The number of guard bytes after every array, and their value.
BEHIND = 256
UNTOUCHED = 0xA5


def run(job: Job, report: Report) -> None:
    # Missing packages are reported by their names.
    import cuda.bindings.driver  # noqa: F401
    import ml_dtypes  # noqa: F401

    kernels_file(job.prepared)
    command = [sys.executable, "-m", "gpu_check.cuda_kernels", str(job.prepared)]
    run_cases(command, report, job.limit(CASE_SECONDS))


def main(folder: Path, first: int) -> None:
    """The main function of the worker."""
    cases = cuda_cases(folder)

    from case_check import check_outputs

    from nearfar.targets.cuda.driver import NvidiaDriver

    driver = NvidiaDriver()
    module = driver.load(folder / CUBIN_FILE)

    def run_one(pair: Any) -> None:
        case, kernels = pair
        for each in case.runs():
            outputs = run_on(driver, module, kernels, each)
            check_outputs((case.name, each.dims), case.dtype, each.expected, outputs, each.kv)

    facts = {"device": driver.name, "arch": driver.arch, "runs": sum(len(case.runs()) for case, _ in cases)}
    work(cases, facts, lambda pair: str(pair[0].name), run_one, first)
    driver.close()


def run_on(driver: Driver, module: Any, kernels: Sequence[CudaKernel], run: Run) -> dict[str, bytes]:
    """Run a case's kernels and return every array. Scratch starts as NaN. Raises AssertionError if a kernel writes past
    an array.
    """
    from nearfar.compiler.ir.expr import evaluate
    from nearfar.compiler.ir.plan import ZEROED
    from nearfar.targets.cuda.driver import Arguments

    arrays = dict(run.arrays)
    for kernel in kernels:
        for name, count in kernel.kernel.scratch.items():
            value = 0 if name.startswith(ZEROED) else np.nan
            arrays[f"scratch.{name}"] = np.full(evaluate(count, run.dims), value, np.float32)
    watched = np.full(BEHIND, UNTOUCHED, np.uint8)
    addresses = {}
    for role, array in arrays.items():
        addresses[role] = driver.allocate(array.nbytes + BEHIND)
        driver.upload(addresses[role], np.ascontiguousarray(array))
        driver.upload(addresses[role] + array.nbytes, watched)
    for kernel in kernels:
        x, y = (evaluate(size, run.dims) for size in kernel.kernel.grid)
        if x and y:
            scalars = [evaluate(scalar, run.dims) for scalar in kernel.scalars]
            values = np.array([*(addresses[role] for role in kernel.buffers), *scalars], np.uint64)
            function = driver.function(module, kernel.entry, kernel.dynamic_bytes)
            driver.launch(function, (x, y), kernel.kernel.workgroup_size, Arguments(values))
    outputs = {}
    for role, array in arrays.items():
        outputs[role] = np.empty(array.nbytes + BEHIND, np.uint8)
        driver.download(outputs[role], addresses[role])
    driver.wait(driver.record())
    for address in addresses.values():
        driver.free(address)
    for role, data in outputs.items():
        assert (data[-BEHIND:] == UNTOUCHED).all(), f"{role} was written beyond its end"
    return {role: data[:-BEHIND].tobytes() for role, data in outputs.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
