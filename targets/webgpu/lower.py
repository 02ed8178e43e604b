"""From a plan to WGSL: every kernel that a step's variants name, lowered once, checked against WebGPU's default
limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nearfar.compiler.bundle.entries import ActivationEntry
from nearfar.compiler.ir.expr import Expr
from nearfar.compiler.ir.plan import Plan
from nearfar.compiler.kernels.builder import NUM_SUBGROUPS, SUBGROUP_ID, Kernel
from nearfar.compiler.kernels.integer_groups import FEATURE as INTEGER_DOTS
from nearfar.compiler.pipeline.lower import LoweredKernel, lower, lower_call
from nearfar.compiler.pipeline.target import LoweredPlan
from nearfar.compiler.quant import Quantization
from nearfar.compiler.quant.layout import Layout
from nearfar.compiler.runtime.errors import RequestError
from nearfar.targets.context import Context
from nearfar.targets.lowering import Compiled, Progress, lower_steps, source_of
from nearfar.targets.variant import KernelCall

from .device import ENABLE_SUBGROUPS
from .variants import MAX_SHARED_BYTES, MAX_STORAGE_BUFFERS, MAX_THREADS, variants_of

# The default limits of WebGPU, which every device has (W3C, WebGPU, 3.6.2).
MAX_BINDING_BYTES = 128 << 20
EXTRA_ACTIVATIONS: tuple[str, ...] = ("int8",)
KV_FORMATS = ("q8", "q4")
HOST_TABLES = True
UNIT_SCALES = True
LAYOUT: Layout = "rows"

# TVM's code generation with subgroups assumes 32 lanes and is wrong elsewhere, so the attribute stays off.
TVM_TARGET = {
    "kind": "webgpu",
    "max_num_threads": MAX_THREADS,
    "max_shared_memory_per_block": MAX_SHARED_BYTES,
    "supports_subgroups": False,
}
NEEDS = {"int8": [INTEGER_DOTS], "float16": ["shader-f16"], "float32": []}
# The functions of that language feature.
PACKED_FUNCTIONS = ("dot4U8Packed(", "dot4I8Packed(", "pack4xU8(")


@dataclass(frozen=True, slots=True)
class WgslKernel:
    """One shader: its text, its entry point, its buffers by role in the order of their bindings, and the values of its
    uniform.
    """

    kernel: Kernel
    text: str
    entry: str
    buffers: tuple[str, ...]
    uniforms: tuple[Expr, ...]


def lower_plan(
    plan: Plan,
    quantization: Quantization,
    activations: tuple[str, ...],
    arch: str | None,
    progress: Callable[[int, int], None],
) -> LoweredPlan:
    """WGSL for every variant of every step; see `nearfar.compiler.pipeline.target`."""
    if arch is not None:
        raise RequestError(f"--arch {arch}: WGSL runs on every GPU, so there is nothing to choose; leave it out")
    context = Context(plan, quantization, activations)
    offered = tuple(ActivationEntry(dtype=dtype, needs=NEEDS[dtype]) for dtype in activations)  # type: ignore[arg-type]
    return lower_steps(
        plan, lambda index: variants_of(plan.steps[index], context), offered, None, compile_kernels, progress
    )


def compile_kernels(calls: Mapping[str, KernelCall], progress: Progress) -> Compiled:
    """One file per kernel."""
    files, kernels = {}, {}
    for done, (name, call) in enumerate(calls.items()):
        progress(done, len(calls))
        shader = checked(*lower_call(call, TVM_TARGET))
        file = f"kernels/{name}.wgsl"
        files[file] = shader.text.encode()
        kernels[name] = source_of(call, shader.kernel, file, shader.entry, shader.buffers, shader.uniforms)
    progress(len(calls), len(calls))
    return Compiled(files, kernels)


def wgsl(kernel: Kernel) -> WgslKernel:
    """One kernel as WGSL. A kernel that exceeds the limits is a bug in its template."""
    return checked(kernel, lower(kernel, TVM_TARGET))


def checked(kernel: Kernel, lowered: LoweredKernel) -> WgslKernel:
    """A lowered kernel, which must be within the limits."""
    assert len(lowered.buffers) <= MAX_STORAGE_BUFFERS, (kernel.name, lowered.buffers)
    assert kernel.workgroup_size <= MAX_THREADS, (kernel.name, kernel.workgroup_size)
    assert kernel.shared_bytes <= MAX_SHARED_BYTES, (kernel.name, kernel.shared_bytes)
    text = with_subgroups(lowered.source) if kernel.subgroups else lowered.source
    if any(function in text for function in PACKED_FUNCTIONS):
        text = f"requires {INTEGER_DOTS};\n{text}"
    # TVM appends the index of the last workgroup in x to the dims; workgroups beyond it return.
    return WgslKernel(kernel, text, lowered.entry, lowered.buffers, (*lowered.scalars, ["sub", kernel.grid[0], 1]))


def with_subgroups(source: str) -> str:
    """WGSL that may use subgroups, with built-in values in place of the calls that represent them."""
    values = {SUBGROUP_ID: "subgroup_id", NUM_SUBGROUPS: "num_subgroups"}
    last = "  @builtin(local_invocation_id) threadIdx : vec3<u32>\n"
    assert source.count(last) == 1, "TVM writes a kernel's parameters in another way"
    parameters = "".join(f",\n  @builtin({name}) {name} : u32" for name in values.values())
    source = source.replace(last, f"{last.rstrip()}{parameters}\n")
    for call, name in values.items():
        source = source.replace(f"{call}()", name)
    return f"{ENABLE_SUBGROUPS}{source}"
