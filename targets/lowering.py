"""From the variants of a plan's steps to a `LoweredPlan`: the same for every target, except how its kernels are
compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from nearfar.compiler.bundle.digest import digest
from nearfar.compiler.bundle.entries import ActivationEntry, BindingEntry, BufferEntry, VariantEntry
from nearfar.compiler.ir.expr import Expr
from nearfar.compiler.ir.plan import Plan
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.pipeline.target import KernelSource, LoweredPlan

from .variant import KernelCall, Variant

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Compiled:
    """The compiled kernels: ``files`` by their path in the bundle, and each kernel's location in them by its name."""

    files: Mapping[str, bytes]
    kernels: Mapping[str, KernelSource]


def lower_steps(
    plan: Plan,
    variants_of: Callable[[int], Sequence[Variant]],
    activations: Iterable[ActivationEntry],
    arch: str | None,
    compile_kernels: Callable[[Mapping[str, KernelCall], Progress], Compiled],
    progress: Progress,
) -> LoweredPlan:
    """``variants_of`` returns the variants of the step with a given index, best first. ``compile_kernels`` builds and
    compiles kernels by name.
    """
    found = [tuple(variants_of(index)) for index in range(len(plan.steps))]
    calls = {call.name: call for variants in found for variant in variants for call in variant.kernels}
    compiled = compile_kernels(calls, progress)
    lists: dict[str, tuple[VariantEntry, ...]] = {}
    names = []
    for step, variants in zip(plan.steps, found, strict=True):
        entries = tuple(variant.entry for variant in variants)
        name = f"{step.op}_{digest([entry.model_dump(mode='json') for entry in entries])}"
        assert lists.setdefault(name, entries) == entries, f"two lists of variants are named {name}"
        names.append(name)
    return LoweredPlan(
        arch=arch,
        files=compiled.files,
        activations=tuple(activations),
        kernels=compiled.kernels,
        variants=lists,
        scratch=scratch_of(compiled.kernels.values()),
        step_variants=tuple(names),
    )


def source_of(
    call: KernelCall,
    built: Kernel,
    file: str,
    entry: str,
    buffers: Sequence[str],
    uniforms: Sequence[Expr],
    shared_bytes: int = 0,
) -> KernelSource:
    """A kernel as a bundle lists it; ``buffers`` are roles in the order of the compiled kernel's parameters.
    ``shared_bytes`` of workgroup memory come from the launch.
    """
    access = {each.role: each.access for each in built.bindings}
    return KernelSource(
        name=call.name,
        template=call.template.__name__,
        facts=call.plain_facts(),
        file=file,
        entry=entry,
        bindings=tuple(binding(role, access[role]) for role in buffers),
        uniforms=tuple(uniforms),
        grid=built.grid,
        workgroup_size=built.workgroup_size,
        scratch=built.scratch,
        shared_bytes=shared_bytes,
    )


def binding(role: str, access: str) -> BindingEntry:
    """The binding of a template's role. The role of a packed weight has a dot and the plane at its end."""
    name, _, plane = role.partition(".")
    return BindingEntry(role=name, plane=plane or None, access=access)  # type: ignore[arg-type]


def scratch_of(kernels: Iterable[KernelSource]) -> dict[str, BufferEntry]:
    """The scratch buffers of all kernels, each with the size of its largest use."""
    sizes: dict[str, list[Expr]] = {}
    for each in kernels:
        for name, elements in each.scratch.items():
            known = sizes.setdefault(name, [])
            known += [] if elements in known else [elements]
    return {name: BufferEntry(shape=[reduce(largest, each)], dtype="float32") for name, each in sizes.items()}


def largest(one: Expr, other: Expr) -> Expr:
    return ["max", one, other]
