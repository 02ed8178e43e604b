"""From a plan to a cubin: every kernel that a step's variants name, lowered once, in one readable source file, compiled
ahead of time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from nearfar.compiler.bundle.entries import ActivationEntry
from nearfar.compiler.ir.plan import Plan
from nearfar.compiler.pipeline.target import LoweredPlan
from nearfar.compiler.quant import Quantization
from nearfar.compiler.quant.layout import Layout
from nearfar.targets.context import Context
from nearfar.targets.lowering import Compiled, Progress, lower_steps, source_of
from nearfar.targets.variant import KernelCall

from .arch import parse_arch
from .nvrtc import check_arch, compile_cubin
from .source import CudaKernel, cuda_of_call, source_file
from .variants import variants_of

# Kernels index with 32-bit integers, and the smallest element is a word.
MAX_BINDING_BYTES = 8 << 30
KV_FORMATS = ("q8", "q4", "fp8")
HOST_TABLES = True
UNIT_SCALES = False
LAYOUT: Layout = "rows"
# Further choices of --activations beside those of the weights: every supported GPU has it.
EXTRA_ACTIVATIONS = ("bfloat16",)
# The number of files that kernels are compiled in, in parallel. Each becomes a module.
PARTS = 2
# The time to compile a kernel, as a multiple of the time to lower it.
COMPILE_COST = 10


def lower_plan(
    plan: Plan,
    quantization: Quantization,
    activations: tuple[str, ...],
    arch: str | None,
    progress: Callable[[int, int], None],
) -> LoweredPlan:
    """CUDA C++ and cubins for every variant of every step; see `nearfar.compiler.pipeline.target`."""
    arch = check_arch(arch)
    context = Context(plan, quantization, activations)
    offered = tuple(ActivationEntry(dtype=dtype, needs=[]) for dtype in activations)  # type: ignore[arg-type]
    return lower_steps(
        plan,
        lambda index: variants_of(plan.steps[index], context, parse_arch(arch).gpu),
        offered,
        arch,
        partial(compile_kernels, arch),
        progress,
    )


def compile_kernels(arch: str, calls: Mapping[str, KernelCall], progress: Progress) -> Compiled:
    """A few files of kernels, each as a cubin with its source."""
    total = len(calls) * (1 + COMPILE_COST)
    lowered: dict[str, CudaKernel] = {}
    for done, (name, call) in enumerate(calls.items()):
        progress(done, total)
        lowered[name] = cuda_of_call(call, parse_arch(arch).gpu)
    parts = {f"kernels/{arch}_{part}": list(lowered)[part::PARTS] for part in range(min(PARTS, len(lowered)))}
    sources = {part: source_file(lowered[name] for name in names) for part, names in parts.items()}
    files = {f"{part}.cu": source.encode() for part, source in sources.items()}
    kernels = {}
    done = len(calls)
    with ThreadPoolExecutor(PARTS) as pool:
        cubins = pool.map(lambda part: compile_cubin(sources[part], arch, f"{part}.cu")[0], parts)
        for (part, names), cubin in zip(parts.items(), cubins, strict=True):
            file = f"{part}.cubin"
            files[file] = cubin
            for name in names:
                each = lowered[name]
                kernels[name] = source_of(
                    calls[name], each.kernel, file, each.entry, each.buffers, each.scalars, each.dynamic_bytes
                )
            done += len(names) * COMPILE_COST
            progress(done, total)
    return Compiled(files, kernels)
