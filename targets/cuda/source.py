"""CUDA C++ of kernels: TVM's output with its errors and gaps corrected, after a prelude that needs no header.

A file of kernels is the `device.cuh` and `functions.cuh` of `compiler/kernels/cuda`, and then one function per kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nearfar.compiler.ir.expr import Expr
from nearfar.compiler.kernels.builder import NUM_SUBGROUPS, SUBGROUP_ID, Kernel
from nearfar.compiler.kernels.cuda.sources import WAIT, device_source, functions_source
from nearfar.compiler.pipeline.lower import Call, LoweredKernel, lower, lower_call

from .arch import WARP, max_dynamic_bytes
from .persistent_source import SHARED

# The limits of every GPU from sm_80 on (CUDA programming guide, technical specifications). A kernel can declare 48 KB
# of shared memory; a launch can add more.
MAX_SHARED_BYTES = 48 << 10
MAX_THREADS = 1024

# The roles of arrays that a kernel may read before it waits: nothing writes the batch's inputs in a step, and pages are
# written by the kernel that reads them, or in earlier steps. The kernels before the previous one have ended then.
EARLY = ("positions", "page_indptr", "page_ids", "kv")
# TVM calls a function that returns a vector once per lane, with the same arguments: "function_x" returns lane x.
VECTOR_FUNCTIONS = ("unpack2x16float", "unpack4x8snorm", "unpack4xe4m3")
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

    @property
    def dynamic_bytes(self) -> int:
        """The shared memory that a launch adds: all, if the kernel cannot declare it."""
        return self.kernel.shared_bytes if self.kernel.shared_bytes > MAX_SHARED_BYTES else 0


def cuda(kernel: Kernel, arch: str) -> CudaKernel:
    """One kernel as CUDA C++. A kernel that exceeds the limits is a bug in its template."""
    return corrected(kernel, lower(kernel, tvm_target(arch)), arch)


def cuda_of_call(call: Call, arch: str) -> CudaKernel:
    """As `cuda`, of the kernel that a call of a template builds."""
    return corrected(*lower_call(call, tvm_target(arch)), arch)


def tvm_target(arch: str) -> dict[str, object]:
    return {
        "kind": "cuda",
        "arch": arch,
        "max_num_threads": MAX_THREADS,
        "max_threads_per_block": MAX_THREADS,
        "max_shared_memory_per_block": max_dynamic_bytes(arch),
        "thread_warp_size": WARP,
    }


def corrected(kernel: Kernel, lowered: LoweredKernel, arch: str) -> CudaKernel:
    """A lowered kernel, which must be within the limits, without the errors of TVM's output."""
    assert kernel.workgroup_size <= MAX_THREADS, (kernel.name, kernel.workgroup_size)
    assert kernel.shared_bytes <= max_dynamic_bytes(arch), (kernel.name, kernel.shared_bytes, arch)
    assert kernel.workgroup_size % WARP == 0 or not kernel.subgroups, (kernel.name, kernel.workgroup_size)
    # The last of two occurrences: TVM declares a function before it defines it, after its own prelude.
    text = lowered.source[lowered.source.rindex('extern "C" __global__') :].strip()
    for pattern, replacement in REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    if kernel.shared_bytes > MAX_SHARED_BYTES:
        text = with_dynamic_memory(text, kernel.shared_bytes)
    text = waiting(with_fresh_parts(text), lowered.buffers)
    return CudaKernel(kernel, text, lowered.entry, lowered.buffers, lowered.scalars)


def waiting(text: str, buffers: Sequence[str]) -> str:
    """The kernel with a wait for the previous kernel before it uses anything but weights and what `EARLY` names, so
    that it may be launched while that one still runs.

    A buffer stays ``__restrict__`` only if it holds weights, or if the kernel only writes it and has a barrier. The
    compiler may move reads of a buffer that nothing can change in front of the wait, and NVRTC 13 concludes that from a
    kernel without barriers all of whose stores are to restricted buffers.
    """
    start = text.index("{") + 1
    head, body = text[:start], text[start:]
    if f"{WAIT}()" not in body:
        body = f"\n  {WAIT}();\n  allow_next_kernel();{body}"
    before, *others = body.split(f"{WAIT}()")
    assert len(others) == 1, f"{head} waits more than once"
    pointers = re.findall(r"\* __restrict__ (\w+)", head)
    assert len(pointers) == len(buffers), head
    for pointer, role in zip(pointers, buffers, strict=True):
        if "." in role and not role.startswith("scratch."):
            continue
        early = role in EARLY and not re.search(rf"(?<!&\()\b{pointer}\[[^=]*\] = ", before)
        assert early or not re.search(rf"\b{pointer}\b", before), f"{head} uses {pointer} before it waits"
        if "__syncthreads()" not in body or not only_written(pointer, body):
            head = re.sub(rf"\* __restrict__ {pointer}\b", f"* {pointer}", head)
    return head + body


def only_written(pointer: str, body: str) -> bool:
    """Whether every use of a pointer is the target of an assignment."""
    other = rf"((?!\b{pointer}\b).)*"
    # Bodies have thousands of lines, and most of them lack the name, which takes less time to see than a pattern.
    uses = [line for line in body.splitlines() if pointer in line and re.search(rf"\b{pointer}\b", line)]
    return all(re.fullmatch(rf"\s*{pointer}\[{other} = {other};", use) for use in uses)


def with_dynamic_memory(text: str, size: int) -> str:
    """The same text with its arrays in the shared memory that a launch adds, ``size`` bytes."""
    offset = "0"

    def array(match: re.Match[str]) -> str:
        nonlocal offset
        dtype, name, length = match.groups()
        start, offset = offset, f"{offset} + sizeof({dtype}) * {length}"
        return f"{dtype}* {name} = ({dtype}*)((char*)dynamic_shared + {start});"

    text, count = SHARED.subn(array, text)
    assert count > 0, text[:2000]
    assert "__shared__" not in text, text[:2000]
    return text.replace("{", f"{{\n  static_assert({offset} == {size});", 1)


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
