"""From a plan to a cubin: every kernel that a step's variants name, lowered once, in one readable source file, compiled ahead of time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from nearfar.compiler.bundle.manifest import ActivationEntry, VariantEntry
from nearfar.compiler.ir.plan import Plan
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.pipeline.target import KernelSource, LoweredPlan
from nearfar.compiler.quant import Quantization
from nearfar.compiler.quant.layout import Layout
from nearfar.targets.context import Context
from nearfar.targets.lowered import binding, name_lists, scratch_of
from nearfar.targets.webgpu.variants import Variant

from .nvrtc import check_arch, compile_cubin
from .source import CudaKernel, cuda, source_file
from .variants import variants_of

# Kernels index with 32-bit integers, and the smallest element is a word.
MAX_BINDING_BYTES = 8 << 30
TAKES_LORA = True
LAYOUT: Layout = "rows"
# What --activations may name beside the weights' own: every GPU that kernels run on has it.
EXTRA_ACTIVATIONS = ("bfloat16",)
# Kernels are compiled in so many files at once, each of which becomes a module.
PARTS = 2


def lower_plan(
    plan: Plan,
    spec: ModelSpec,
    quantization: Quantization,
    activations: tuple[str, ...],
    arch: str | None,
    progress: Callable[[int, int], None],
) -> LoweredPlan:
    """CUDA C++ and cubins for every variant of every step; see `nearfar.compiler.pipeline.target`."""
    arch = check_arch(arch)
    context = Context(plan, spec, quantization, activations)
    rows = [variants_of(step, context) for step in plan.steps]
    wanted = {name: build for row in rows for variant in row for name, build in variant.kernels.items()}
    kernels: dict[str, CudaKernel] = {}
    # Compiling a kernel takes ten times as long as lowering it.
    total = len(wanted) * 11
    for done, (name, build) in enumerate(wanted.items()):
        progress(done, total)
        kernels[name] = cuda(build(), arch)
    parts = {f"kernels/{arch}_{part}": list(kernels.values())[part::PARTS] for part in range(min(PARTS, len(kernels)))}
    sources = {f"{name}.cu": source_file(part) for name, part in parts.items()}
    with ThreadPoolExecutor(PARTS) as pool:
        compiled = pool.map(lambda source: compile_cubin(source[1], arch, source[0])[0], sources.items())
        cubins: dict[str, bytes] = {}
        for name, part in parts.items():
            progress(len(wanted) + 10 * sum(len(parts[each.removesuffix(".cubin")]) for each in cubins), total)
            assert part
            cubins[f"{name}.cubin"] = next(compiled)
    progress(total, total)
    file_of = {kernel.kernel.name: f"{name}.cubin" for name, part in parts.items() for kernel in part}
    lists, step_variants = name_lists([tuple(map(entry, row)) for row in rows])
    return LoweredPlan(
        arch=arch,
        files={**{name: source.encode() for name, source in sources.items()}, **cubins},
        activations=tuple(ActivationEntry(dtype=dtype, needs=[]) for dtype in activations),  # type: ignore[arg-type]
        kernels={name: kernel_source(kernel, file_of[name]) for name, kernel in kernels.items()},
        variants=lists,
        scratch=scratch_of(kernel.kernel for kernel in kernels.values()),
        step_variants=step_variants,
    )


def kernel_source(kernel: CudaKernel, file: str) -> KernelSource:
    access = {binding.role: binding.access for binding in kernel.kernel.bindings}
    return KernelSource(
        name=kernel.kernel.name,
        template="",
        facts={},
        file=file,
        entry=kernel.entry,
        bindings=tuple(binding(role, access[role]) for role in kernel.buffers),
        uniforms=kernel.scalars,
        grid=kernel.kernel.grid,
        workgroup_size=kernel.kernel.workgroup_size,
    )


def entry(variant: Variant) -> VariantEntry:
    return VariantEntry(kernels=list(variant.kernels), activation=variant.activation, needs=[], when=variant.when)  # type: ignore[arg-type]
