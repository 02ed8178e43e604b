"""Writes plans and their kernels as entries of the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..bundle.entries import (
    BufferEntry,
    ConstantEntry,
    FileEntry,
    GatheredEntry,
    InputEntry,
    KernelEntry,
    PlanEntry,
    StepEntry,
)
from ..ir.plan import Buffer, Plan
from .store import Store
from .target import LoweredPlan


def write_kernels(lowered: LoweredPlan, store: Store) -> tuple[dict[str, KernelEntry], list[FileEntry]]:
    """Put the files of the kernels into the store. Returns the kernels, and the files that none of them names, which
    are the source of others.
    """
    files = {file: store.put(file, data) for file, data in lowered.files.items()}
    sources = [entry for file, entry in files.items() if all(file != each.file for each in lowered.kernels.values())]
    kernels = {
        name: KernelEntry(
            template=kernel.template,
            facts=dict(kernel.facts),
            file=kernel.file,
            sha256=files[kernel.file].sha256,
            entry=kernel.entry,
            bindings=list(kernel.bindings),
            uniforms=list(kernel.uniforms),
            grid=list(kernel.grid),
            workgroup_size=kernel.workgroup_size,
            shared_bytes=kernel.shared_bytes,
        )
        for name, kernel in lowered.kernels.items()
    }
    return kernels, sources


def plan_entries(plans: Mapping[str, Plan], step_variants: Sequence[str]) -> dict[str, PlanEntry]:
    """``step_variants`` holds the name of each step's list of variants, for all plans in order."""
    names = iter(step_variants)
    return {name: plan_entry(plan, [next(names) for _ in plan.steps]) for name, plan in plans.items()}


def plan_entry(plan: Plan, step_variants: Sequence[str]) -> PlanEntry:
    def entries(buffers: Mapping[str, Buffer]) -> dict[str, BufferEntry]:
        return {name: BufferEntry(shape=list(buffer.shape), dtype=buffer.dtype) for name, buffer in buffers.items()}

    return PlanEntry(
        inputs={name: InputEntry.model_validate(entry.model_dump()) for name, entry in entries(plan.inputs).items()},
        states=entries(plan.states),
        constants={
            name: ConstantEntry(
                kind=constant.kind,
                shape=list(constant.shape),
                inverse_frequencies=constant.attrs["inverse_frequencies"],
                scale=constant.attrs["scale"],
                first=constant.attrs.get("first", 0),
            )
            for name, constant in plan.constants.items()
        },
        buffers=entries(plan.buffers),
        steps=[
            StepEntry(
                op=step.op,
                variants=variants,
                inputs=dict(step.inputs),
                outputs=dict(step.outputs),
                attrs=dict(step.attrs),
            )
            for step, variants in zip(plan.steps, step_variants, strict=True)
        ],
        outputs=dict(plan.outputs),
        gathered={
            name: GatheredEntry(weights=list(each.parts), scale=each.scale) for name, each in plan.gathered.items()
        },
    )
