"""From a plan to a shared library: the kernels of every step's variants, one object file for each level of instruction
sets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from nearfar.compiler.bundle.entries import ActivationEntry
from nearfar.compiler.ir.plan import Plan
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.pipeline.lower import OBJECT_PREFIX, lower_calls_object
from nearfar.compiler.pipeline.target import LoweredPlan
from nearfar.compiler.quant import Quantization
from nearfar.compiler.quant.layout import Layout
from nearfar.targets.lowering import Compiled, Progress, lower_steps, source_of
from nearfar.targets.variant import KernelCall

from .levels import Arch, Level, by_name
from .link import link
from .variants import CpuContext, variants_of

# Indices within a buffer are signed 32-bit integers.
MAX_BINDING_BYTES = (2 << 30) - 1
# Tables of embeddings are mapped from their files, so they need no memory but for the rows that are read.
KV_FORMATS = ("q8", "q4")
HOST_TABLES = False
UNIT_SCALES = True
EXTRA_ACTIVATIONS = ("int8",)
LAYOUT: Layout = "tiles16"


def lower_plan(
    plan: Plan,
    quantization: Quantization,
    activations: tuple[str, ...],
    arch: str | None,
    progress: Callable[[int, int], None],
) -> LoweredPlan:
    """One library for every variant of every step; see `nearfar.compiler.pipeline.target`. ``arch`` is one of
    `levels.ARCHS`.

    Raises ToolError if there is no linker.
    """
    chosen = by_name(arch)
    context = CpuContext(plan, quantization, activations, chosen.levels)
    return lower_steps(
        plan,
        lambda index: variants_of(plan.steps[index], context),
        tuple(ActivationEntry(dtype=dtype, needs=[]) for dtype in activations),  # type: ignore[arg-type]
        chosen.name,
        lambda calls, progress: compile_library(chosen, calls, progress),
        progress,
    )


def compile_library(arch: Arch, calls: Mapping[str, KernelCall], progress: Progress) -> Compiled:
    """Build the kernels and compile them into one library."""
    # LLVM and the linker take as long as building the kernels does.
    total, done = 2 * len(calls), 0
    objects, built = [], dict[str, Kernel]()
    for level in arch.levels:
        of_level = [call for call in calls.values() if call.facts["isa"] == level.isa]
        if of_level:
            progress(done, total)
            kernels, compiled = lower_calls_object(
                of_level, tvm_target(arch, level), partial(progress_from, progress, done, total)
            )
            objects.append(compiled)
            built |= {kernel.name: kernel for kernel in kernels}
            done += 2 * len(of_level)
    file = f"kernels/{arch.name}.so"
    library = link(objects, arch.triple)
    progress(total, total)
    sources = {
        name: source_of(
            call,
            built[name],
            file,
            f"{OBJECT_PREFIX}{name}",
            [each.role for each in built[name].bindings],
            built[name].scalars,
        )
        for name, call in calls.items()
    }
    return Compiled({file: library}, sources)


def progress_from(progress: Progress, start: int, total: int, done: int) -> None:
    progress(start + done, total)


def tvm_target(arch: Arch, level: Level) -> dict[str, object]:
    return {"kind": "llvm", "mtriple": arch.triple, "mcpu": level.cpu, "mattr": list(level.attributes), "opt-level": 3}
