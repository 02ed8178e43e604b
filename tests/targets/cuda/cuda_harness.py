"""Runs the cases of `kernel_cases.py` on emulated CUDA. All their kernels are in one library, compiled once."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from emulated import Library
from kernel_harness import Case, Run

from nearfar.compiler.ir.expr import evaluate
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.ir.plan import ZEROED
from nearfar.targets.cuda.source import CudaKernel, cuda, source_file

# The number of guard bytes after every array, and their value.
BEHIND = 256
UNTOUCHED = 0xA5


@dataclass(frozen=True)
class Emulated:
    """Cases by name with their kernels, and the library that holds these."""

    kernels: Mapping[str, Sequence[CudaKernel]]
    library: Library

    def run(self, case: Case, run: Run) -> dict[str, Array]:
        """The buffers that the kernels wrote, by role. Scratch starts as NaN."""
        kernels = self.kernels[case.name]
        buffers = {role: aligned(array) for role, array in run.arrays.items()}
        for kernel in kernels:
            for name, elements in kernel.kernel.scratch.items():
                value = 0 if name.startswith(ZEROED) else np.nan
                buffers.setdefault(f"scratch.{name}", aligned(np.full(evaluate(elements, run.dims), value, np.float32)))
        for kernel in kernels:
            parameters = [buffers[role].ctypes.data for role in kernel.buffers]
            parameters += [evaluate(scalar, run.dims) for scalar in kernel.scalars]
            x, y = (evaluate(size, run.dims) for size in kernel.kernel.grid)
            self.library.launch(kernel.entry, (x, y), kernel.kernel.workgroup_size, parameters)
        for role, array in buffers.items():
            assert not role.startswith(f"scratch.{ZEROED}") or not array.any(), (case.name, role, "is not zero")
            assert (behind(array) == UNTOUCHED).all(), (case.name, role, "was written beyond its end")
        return buffers


def emulate(cases: Sequence[Case], folder: Path) -> Emulated:
    kernels, source = lower_cases(cases, "sm_90")
    # Compiling them takes longer than running them.
    return Emulated(kernels, Library(source, folder, "-O0"))


def lower_cases(cases: Sequence[Case], arch: str) -> tuple[dict[str, list[CudaKernel]], str]:
    """The kernels of each case by its name, and one source file with all of them."""
    lowered: dict[str, CudaKernel] = {}
    names: dict[str, str] = {}
    kernels = {}
    for number, case in enumerate(cases):
        kernels[case.name] = [cuda(kernel, arch) for kernel in case.kernels()]
        for index, kernel in enumerate(kernels[case.name]):
            # Different cases may use the same name for a kernel, but a source file defines each function once.
            entry = names.setdefault(kernel.text, f"{kernel.entry}_{number}")
            renamed = CudaKernel(
                kernel.kernel,
                kernel.text.replace(f"{kernel.entry}(", f"{entry}("),
                entry,
                kernel.buffers,
                kernel.scalars,
            )
            lowered[entry] = kernels[case.name][index] = renamed
    return kernels, source_file(lowered.values())


def aligned(array: Array) -> Array:
    """A copy at a multiple of 256 bytes, as a GPU's allocations are."""
    layout = np.full(array.nbytes + 256 + BEHIND, UNTOUCHED, np.uint8)
    start = -layout.ctypes.data % 256
    copy = layout[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def behind(array: Array) -> Array:
    """The guard bytes after such a copy."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * BEHIND).from_address(array.ctypes.data + array.nbytes))
