"""Every CPU kernel template against its op, on the levels of instruction sets that this machine has, all in one library."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pytest
from cpu_cases import CpuCase, all_cases, in_the_order_of_ops
from kernel_harness import LoweredCase, Run

from nearfar.compiler.ir.expr import evaluate
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.pipeline.lower import OBJECT_PREFIX, lower_object
from nearfar.targets.cpu.levels import by_name, features
from nearfar.targets.cpu.library import Library
from nearfar.targets.cpu.link import link
from nearfar.targets.cpu.lower import tvm_target
from nearfar.targets.cpu.runner import aligned
from nearfar.targets.cpu.variants import PLAIN_LEVELS

CASES = {case.name: case for case in all_cases()}
ARCH = by_name(None)
LEVELS = [level for level in ARCH.levels if level in PLAIN_LEVELS and set(level.needs) <= features()]
# The best level runs all cases. Others differ in the lanes of a vector alone, so a few cases of every kind do; projections have tests of
# their own at all levels.
FEW = ("attention", "embed_q4f32", "rms_norm_37", "sample_8200", "adjust_logits_37", "top_logprobs_8200")
ON = [(name, level) for level in LEVELS for name in CASES if level is LEVELS[0] or any(each in name for each in FEW)]

# Those that compute an op, in their order.
Kernels: TypeAlias = tuple[Kernel, ...]


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernels]:
    return {f"{name}_{level.name}": CASES[name].kernels(level) for name, level in ON}


@pytest.fixture(scope="module")
def library(kernels: dict[str, Kernels], tmp_path_factory: pytest.TempPathFactory) -> Library:
    objects = [
        lower_object([kernel for name, on in ON if on is level for kernel in kernels[f"{name}_{level.name}"]], tvm_target(ARCH, level))
        for level in LEVELS
    ]
    file = tmp_path_factory.mktemp("kernels") / "kernels.so"
    file.write_bytes(link(objects, ARCH.triple))
    library = Library(file)
    library.start_threads(2)
    return library


def run_kernels(library: Library, kernels: Kernels, run: Run) -> dict[str, bytes]:
    """What kernels, one after the other, leave in the buffers that they write, by role; scratch is NaN before."""
    scratch: dict[str, int] = {}
    for name, size in (item for kernel in kernels for item in kernel.scratch.items()):
        scratch[f"scratch.{name}"] = max(evaluate(size, run.dims), scratch.get(f"scratch.{name}", 0))
    given = {**run.arrays, **{role: np.full(size, np.nan, np.float32) for role, size in scratch.items()}}
    arrays = {role: aligned(array) for role, array in given.items()}
    calls = []
    for kernel in kernels:
        pointers = [arrays[binding.role].ctypes.data for binding in kernel.bindings]
        calls.append((f"{OBJECT_PREFIX}{kernel.name}", pointers, len(kernel.scalars)))
    scalars = [run.dims[dim] for kernel in kernels for dim in kernel.scalars]
    library.run(library.prepare(calls), np.array(scalars, np.int64))
    written = {binding.role for kernel in kernels for binding in kernel.bindings if binding.access == "write"}
    return in_the_order_of_ops({role: arrays[role] for role in written})


@pytest.mark.parametrize(("name", "level"), [(name, level.name) for name, level in ON])
def test_a_kernel_computes_its_op(name: str, level: str, kernels: dict[str, Kernels], library: Library) -> None:
    case: CpuCase = CASES[name]
    runs = tuple(case.runs())
    checker = LoweredCase(name, (), {}, runs, case.dtype)
    for run in runs:
        checker.check(run, run_kernels(library, kernels[f"{name}_{level}"], run))


@pytest.mark.parametrize("level", [level.name for level in LEVELS])
def test_all_attention_kernels_compute_the_same_bits(level: str, kernels: dict[str, Kernels], library: Library) -> None:
    for facts in ("6_24_float32_activation", "6_24_float32_q8", "3_66_float16_activation"):
        forms = [name for name in CASES if name.endswith(facts) and "attention" in name]
        for form in forms:
            for run in CASES[form].runs():
                found, expected = (run_kernels(library, kernels[f"{each}_{level}"], run)["y"] for each in (form, f"rope_attention_{facts}"))
                assert found == expected, (form, run.dims)
        assert len(forms) > 1
