"""CUDA C++ of kernels: TVM's output with its errors and gaps corrected, after a prelude that needs no header.

A file of kernels is the `device.cuh` and `functions.cuh` of `compiler/kernels/cuda`, and then one function per kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from nearfar.compiler.ir.expr import Expr
from nearfar.compiler.kernels.builder import NUM_SUBGROUPS, SUBGROUP_ID, Kernel
from nearfar.compiler.kernels.cuda.functions import device_source, functions_source
from nearfar.compiler.pipeline.lower import lower

# The limits of every GPU from sm_80 on without opting in to more (CUDA programming guide, technical specifications).
MAX_SHARED_BYTES = 48 << 10
MAX_THREADS = 1024
WARP = 32

# TVM calls a function that returns a vector once per lane, with the same arguments: "function_x" returns lane x.
VECTOR_FUNCTIONS = ("unpack2x16float", "unpack4x8snorm")
REPLACEMENTS: tuple[tuple[str, str], ...] = (
    (rf"(\.([xyzw]) = )({'|'.join(VECTOR_FUNCTIONS)})\(", r"\1\3_\2("),
    # TVM emits these for the condition of a select between vectors, with the type of the selected values.
    (r"\b\w+([24]) (v_\w*) = make_ushort[24]\(", r"bool\1 \2 = bools("),
    (r"\bround\(", "round_even("),
    # A subgroup is a warp, and blocks are whole warps.
    (rf"\b{SUBGROUP_ID}\(\)", f"(threadIdx.x / {WARP}u)"),
    (rf"\b{NUM_SUBGROUPS}\(\)", f"(blockDim.x / {WARP}u)"),
    (r"\bsubgroupExclusiveAdd\(\(uint\)1\)", f"(threadIdx.x % {WARP}u)"),
    (r"\bsubgroupAdd\(\(uint\)1\)", f"{WARP}u"),
)
# TVM's names for a part of an expression ("v_", "v__1") and for a vector that it fills lane by lane ("__1").
PART = re.compile(r"\bv_(?:_\d+)?\b")
PART_DEFINITION = re.compile(r"\s*(\w+) (v_(?:_\d+)?) = (.*);$")
LANES = re.compile(r"\s*(\w+ )?__\d+(\.[xyzw] = .*)?;$")


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """One function: its text, its name, its buffers by role and then the dims, in the order of its parameters."""

    kernel: Kernel
    text: str
    entry: str
    buffers: tuple[str, ...]
    scalars: tuple[Expr, ...]


def cuda(kernel: Kernel, arch: str) -> CudaKernel:
    """One kernel as CUDA C++. A kernel that exceeds the limits is a bug in its template."""
    assert kernel.workgroup_size <= MAX_THREADS, (kernel.name, kernel.workgroup_size)
    assert kernel.shared_bytes <= MAX_SHARED_BYTES, (kernel.name, kernel.shared_bytes)
    assert kernel.workgroup_size % WARP == 0 or not kernel.subgroups, (kernel.name, kernel.workgroup_size)
    target = {
        "kind": "cuda",
        "arch": arch,
        "max_num_threads": MAX_THREADS,
        "max_threads_per_block": MAX_THREADS,
        "max_shared_memory_per_block": MAX_SHARED_BYTES,
        "thread_warp_size": WARP,
    }
    lowered = lower(kernel, target)
    # The last of two occurrences: TVM declares a function before it defines it, after its own prelude.
    text = lowered.source[lowered.source.rindex('extern "C" __global__') :].strip()
    for pattern, replacement in REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    return CudaKernel(kernel, with_fresh_parts(text), lowered.entry, lowered.buffers, lowered.scalars)


def with_fresh_parts(text: str) -> str:
    """The same text, in which a part of an expression is recomputed if a statement lies between it and its use.

    TVM names equal expressions in a scope once, although the memory that they read may have been written in between.
    """
    lines: list[str] = []
    parts: dict[str, tuple[str, str]] = {}
    fresh: set[str] = set()
    copies = 0

    def with_copies(line: str) -> str:
        def copy_of(match: re.Match[str]) -> str:
            nonlocal copies
            name = match[0]
            if name in fresh or name not in parts:
                return name
            dtype, expression = parts[name]
            expression = PART.sub(copy_of, expression)
            copies += 1
            lines.append(f"  {dtype} part_{copies} = {expression};")
            return f"part_{copies}"

        return PART.sub(copy_of, line)

    for line in text.splitlines():
        definition = PART_DEFINITION.match(line)
        if definition is not None:
            dtype, name, expression = definition.groups()
            lines.append(f"  {dtype} {name} = {with_copies(expression)};")
            parts[name] = dtype, expression
            fresh.add(name)
            continue
        lines.append(with_copies(line))
        if not LANES.match(line):
            fresh.clear()
    return "\n".join(lines)


def source_file(kernels: Iterable[CudaKernel]) -> str:
    """One self-contained file of CUDA C++."""
    # Tests without a GPU define NEARFAR_DEVICE to replace the part that needs a GPU with an emulation.
    parts = [
        f"#ifndef NEARFAR_DEVICE\n{device_source()}\n#endif",
        functions_source(),
        *(kernel.text for kernel in kernels),
    ]
    return "\n\n".join(parts) + "\n"
