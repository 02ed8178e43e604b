"""From a plan to a shared library: every kernel that a step's variants name, one object file for each level of instruction sets."""

from __future__ import annotations

from collections.abc import Callable

from nearfar.compiler.bundle.manifest import ActivationEntry, VariantEntry
from nearfar.compiler.ir.plan import Plan
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.pipeline.lower import OBJECT_PREFIX, lower_object
from nearfar.compiler.pipeline.target import KernelSource, LoweredPlan
from nearfar.compiler.quant import Quantization
from nearfar.compiler.quant.layout import Layout
from nearfar.targets.lowered import binding, name_lists, scratch_of

from .levels import Arch, Level, by_name
from .link import link
from .variants import CpuContext, Variant, variants_of

# Indices within a buffer are 32-bit, with a sign.
MAX_BINDING_BYTES = (2 << 30) - 1
TAKES_LORA = True
EXTRA_ACTIVATIONS = ("int8",)
LAYOUT: Layout = "tiles16"


def lower_plan(
    plan: Plan,
    quantization: Quantization,
    activations: tuple[str, ...],
    arch: str | None,
    progress: Callable[[int, int], None],
) -> LoweredPlan:
    """One library for every variant of every step; see `nearfar.compiler.pipeline.target`. ``arch`` is one of `levels.ARCHS`.

    Raises ToolError where there is no linker.
    """
    chosen = by_name(arch)
    context = CpuContext(plan, quantization, activations, chosen.levels)
    rows = [variants_of(step, context) for step in plan.steps]
    wanted = {each.kernel_name: each for row in rows for variant in row for each in variant.kernels}
    kernels: dict[Level, list[Kernel]] = {}
    # The last step is LLVM's work and the link, which take as long as all the rest.
    total = 2 * len(wanted)
    for done, variant in enumerate(wanted.values()):
        progress(done, total)
        kernels.setdefault(variant.level, []).append(variant.kernel())
    library = link(objects(chosen, kernels, lambda done: progress(len(wanted) + done, total)), chosen.triple)
    progress(total, total)
    file = f"kernels/{chosen.name}.so"
    made = [kernel for each in kernels.values() for kernel in each]
    lists, step_variants = name_lists([tuple(map(entry, row)) for row in rows])
    return LoweredPlan(
        arch=chosen.name,
        files={file: library},
        activations=tuple(ActivationEntry(dtype=dtype, needs=[]) for dtype in activations),  # type: ignore[arg-type]
        kernels={kernel.name: source_of(kernel, file) for kernel in made},
        variants=lists,
        scratch=scratch_of(made),
        step_variants=step_variants,
    )


def objects(arch: Arch, kernels: dict[Level, list[Kernel]], progress: Callable[[int], None]) -> list[bytes]:
    """An object file for each level's kernels."""
    found, done = [], 0
    for level, of_level in kernels.items():
        found.append(lower_object(of_level, tvm_target(arch, level)))
        done += len(of_level)
        progress(done)
    return found


def tvm_target(arch: Arch, level: Level) -> dict[str, object]:
    return {"kind": "llvm", "mtriple": arch.triple, "mcpu": level.cpu, "mattr": list(level.attributes), "opt-level": 3}


def source_of(kernel: Kernel, file: str) -> KernelSource:
    return KernelSource(
        name=kernel.name,
        template="",
        facts={},
        file=file,
        entry=f"{OBJECT_PREFIX}{kernel.name}",
        bindings=tuple(binding(each.role, each.access) for each in kernel.bindings),
        uniforms=kernel.scalars,
        grid=kernel.grid,
        workgroup_size=kernel.workgroup_size,
    )


def entry(variant: Variant) -> VariantEntry:
    return VariantEntry(
        kernels=[each.kernel_name for each in variant.kernels],
        activation=variant.activation,  # type: ignore[arg-type]
        needs=list(variant.level.needs),
        when=variant.when,
    )
