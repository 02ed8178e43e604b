"""Every CPU kernel template against its op, on the levels of instruction sets that this machine has, all in one library."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_cases import CpuCase, all_cases, in_the_order_of_ops
from kernel_harness import LoweredCase, Run

from nearfar.compiler.expr import evaluate
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.lower import OBJECT_PREFIX, lower_object
from nearfar.targets.cpu.levels import by_name, features
from nearfar.targets.cpu.library import Library
from nearfar.targets.cpu.link import link
from nearfar.targets.cpu.lower import tvm_target
from nearfar.targets.cpu.runner import aligned
from nearfar.targets.cpu.variants import PLAIN_LEVELS

CASES = {case.name: case for case in all_cases()}
ARCH = by_name(None)
LEVELS = [level for level in ARCH.levels if level in PLAIN_LEVELS and set(level.needs) <= features()]


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    return {f"{name}_{level.name}": case.build(f"{name}_{level.name}", level.isa) for level in LEVELS for name, case in CASES.items()}


@pytest.fixture(scope="module")
def library(kernels: dict[str, Kernel], tmp_path_factory: pytest.TempPathFactory) -> Library:
    objects = [lower_object([kernels[f"{name}_{level.name}"] for name in CASES], tvm_target(ARCH, level)) for level in LEVELS]
    file = tmp_path_factory.mktemp("kernels") / "kernels.so"
    file.write_bytes(link(objects, ARCH.triple))
    library = Library(file)
    library.start_threads(2)
    return library


def run_kernel(library: Library, kernel: Kernel, run: Run) -> dict[str, bytes]:
    """What a kernel leaves in the buffers that it writes, by role; scratch is NaN before."""
    scratch = {f"scratch.{name}": np.full(evaluate(size, run.dims), np.nan, np.float32) for name, size in kernel.scratch.items()}
    arrays = {role: aligned(array) for role, array in {**run.arrays, **scratch}.items()}
    pointers = [arrays[binding.role].ctypes.data for binding in kernel.bindings]
    launches = library.prepare([(f"{OBJECT_PREFIX}{kernel.name}", pointers, len(kernel.scalars))])
    library.run(launches, np.array([run.dims[dim] for dim in kernel.scalars], np.int64))
    return in_the_order_of_ops({binding.role: arrays[binding.role] for binding in kernel.bindings if binding.access == "write"})


@pytest.mark.parametrize("level", [level.name for level in LEVELS])
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_computes_its_op(name: str, level: str, kernels: dict[str, Kernel], library: Library) -> None:
    case: CpuCase = CASES[name]
    runs = tuple(case.runs())
    checker = LoweredCase(name, (), {}, runs, case.dtype)
    for run in runs:
        checker.check(run, run_kernel(library, kernels[f"{name}_{level}"], run))


@pytest.mark.parametrize("level", [level.name for level in LEVELS])
def test_all_attention_kernels_compute_the_same_bits(level: str, kernels: dict[str, Kernel], library: Library) -> None:
    for facts in ("6_24_float32_activation", "6_24_float32_q8", "3_66_float16_activation"):
        forms = [name for name in CASES if name.endswith(facts) and "attention" in name]
        for form in forms:
            for run in CASES[form].runs():
                found, expected = (run_kernel(library, kernels[f"{each}_{level}"], run)["y"] for each in (form, f"rope_attention_{facts}"))
                assert found == expected, (form, run.dims)
        assert len(forms) > 1
