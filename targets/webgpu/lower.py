"""From a plan to WGSL: every kernel that a step's variants name, lowered once, checked against WebGPU's default limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nearfar.compiler.bundle.manifest import ActivationEntry, VariantEntry
from nearfar.compiler.errors import RequestError
from nearfar.compiler.ir.plan import Plan
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.kernels.builder import NUM_SUBGROUPS, SUBGROUP_ID, Kernel
from nearfar.compiler.pipeline.lower import lower
from nearfar.compiler.pipeline.target import KernelSource, LoweredPlan
from nearfar.compiler.quant import Quantization
from nearfar.compiler.quant.layout import Layout
from nearfar.targets.context import Context
from nearfar.targets.lowered import binding, name_lists, scratch_of

from .device import ENABLE_SUBGROUPS
from .variants import MAX_SHARED_BYTES, Variant, variants_of

# The default limits of WebGPU, which every device has (W3C, WebGPU, 3.6.2).
MAX_BINDING_BYTES = 128 << 20
EXTRA_ACTIVATIONS: tuple[str, ...] = ()
TAKES_LORA = False
LAYOUT: Layout = "rows"
MAX_STORAGE_BUFFERS = 8
MAX_THREADS = 256

# TVM's code generation with subgroups assumes 32 lanes and is wrong elsewhere, so the attribute stays off.
TVM_TARGET = {
    "kind": "webgpu",
    "max_num_threads": MAX_THREADS,
    "max_shared_memory_per_block": MAX_SHARED_BYTES,
    "supports_subgroups": False,
}
NEEDS = {"float16": ["shader-f16"], "float32": []}


@dataclass(frozen=True, slots=True)
class WgslKernel:
    """A kernel as a bundle lists it, and its WGSL."""

    source: KernelSource
    text: str


def lower_plan(
    plan: Plan,
    spec: ModelSpec,
    quantization: Quantization,
    activations: tuple[str, ...],
    arch: str | None,
    progress: Callable[[int, int], None],
) -> LoweredPlan:
    """WGSL for every variant of every step; see `nearfar.compiler.pipeline.target`."""
    if arch is not None:
        raise RequestError(f"--arch {arch}: WGSL runs on every GPU, so there is nothing to choose; leave it out")
    context = Context(plan, spec, quantization, activations)
    rows = [variants_of(step, context) for step in plan.steps]
    wanted = {name: build for row in rows for variant in row for name, build in variant.kernels.items()}
    kernels = {}
    files = {}
    built = []
    for done, (name, build) in enumerate(wanted.items()):
        progress(done, len(wanted))
        built.append(build())
        lowered = wgsl(built[-1])
        kernels[name] = lowered.source
        files[lowered.source.file] = lowered.text.encode()
    progress(len(wanted), len(wanted))
    lists, step_variants = name_lists([tuple(map(entry, row)) for row in rows])
    return LoweredPlan(
        arch=None,
        files=files,
        activations=tuple(ActivationEntry(dtype=dtype, needs=NEEDS[dtype]) for dtype in activations),  # type: ignore[arg-type]
        kernels=kernels,
        variants=lists,
        scratch=scratch_of(built),
        step_variants=step_variants,
    )


def wgsl(kernel: Kernel) -> WgslKernel:
    """One kernel as WGSL. A kernel beyond the default limits is a bug of its template."""
    lowered = lower(kernel, TVM_TARGET)
    assert len(lowered.buffers) <= MAX_STORAGE_BUFFERS, (kernel.name, lowered.buffers)
    assert kernel.workgroup_size <= MAX_THREADS, (kernel.name, kernel.workgroup_size)
    assert kernel.shared_bytes <= MAX_SHARED_BYTES, (kernel.name, kernel.shared_bytes)
    access = {binding.role: binding.access for binding in kernel.bindings}
    source = KernelSource(
        name=kernel.name,
        template="",
        facts={},
        file=f"kernels/{kernel.name}.wgsl",
        entry=lowered.entry,
        bindings=tuple(binding(role, access[role]) for role in lowered.buffers),
        # TVM puts the index of the last workgroup in x behind the dims; the kernel returns beyond it.
        uniforms=(*lowered.scalars, ["sub", kernel.grid[0], 1]),
        grid=kernel.grid,
        workgroup_size=kernel.workgroup_size,
    )
    return WgslKernel(source, with_subgroups(lowered.source) if kernel.subgroups else lowered.source)


def with_subgroups(source: str) -> str:
    """WGSL that may use subgroups, with the built-in values that the kernel asks for by calls."""
    values = {SUBGROUP_ID: "subgroup_id", NUM_SUBGROUPS: "num_subgroups"}
    last = "  @builtin(local_invocation_id) threadIdx : vec3<u32>\n"
    assert source.count(last) == 1, "TVM writes a kernel's parameters in another way"
    parameters = "".join(f",\n  @builtin({name}) {name} : u32" for name in values.values())
    source = source.replace(last, f"{last.rstrip()}{parameters}\n")
    for call, name in values.items():
        source = source.replace(f"{call}()", name)
    return f"{ENABLE_SUBGROUPS}{source}"


def entry(variant: Variant) -> VariantEntry:
    kernels, needs = list(variant.kernels), list(variant.needs)
    return VariantEntry(kernels=kernels, activation=variant.activation, needs=needs, when=variant.when)  # type: ignore[arg-type]
