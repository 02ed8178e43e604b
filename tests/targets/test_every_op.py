"""Every op has a plain kernel on every kernel target: a row without conditions on the batch or the device."""

from __future__ import annotations

import importlib

import pytest
from graph_builder import Build
from one_op import graphs
from one_state_op import gated_delta

from nearfar.compiler import quant
from nearfar.compiler.bundle.check_kernels import check_facts
from nearfar.compiler.bundle.entries import BindingEntry
from nearfar.compiler.ir.ops import OPS, Use
from nearfar.compiler.ir.plan import Plan, Step, make_plan
from nearfar.compiler.names import TARGETS
from nearfar.compiler.runtime.errors import UnsupportedModel
from nearfar.targets.context import Context
from nearfar.targets.cpu.levels import by_name
from nearfar.targets.cpu.variants import CpuContext
from nearfar.targets.lowering import binding
from nearfar.targets.variant import KernelCall

# By target and name: equal facts make one kernel.
BINDINGS: dict[tuple[str, str], list[BindingEntry]] = {}
# CUDA shares most templates with WebGPU: of its graphs, `make test` builds every fourth in turn.
GRAPHS = [
    pytest.param(
        target,
        build,
        id=f"{target}-{op}-{name}",
        marks=[pytest.mark.exhaustive] * (target == "cuda" and turn % 4 > 0),
    )
    for target in TARGETS
    for turn, (op, name, build) in enumerate(graphs())
]


def test_every_op_has_a_graph() -> None:
    assert {op for op, _, _ in graphs()} == OPS.keys()
    for op, _, build in graphs():
        assert build().nodes[-1].op == op


@pytest.mark.parametrize(("target", "build"), GRAPHS)
def test_the_last_row_of_every_op_runs_anywhere(target: str, build: Build) -> None:
    variants = importlib.import_module(f"nearfar.targets.{target}.variants")
    plan = make_plan(build())
    for activations in (("float16", "float32"), ("float32",)):
        context = context_of(target, plan, activations)
        for step in plan.steps:
            rows = variants.variants_of(step, context)
            for activation in activations:
                last = [row for row in rows if row.activation in (None, activation)][-1]
                assert last.when is None
                assert last.needs == ()
                for call in last.kernels:
                    # Otherwise a bundle with the kernel would not open.
                    check_facts(call.name, step.op, use_of(plan, step), call.plain_facts(), bindings_of(target, call))


def bindings_of(target: str, call: KernelCall) -> list[BindingEntry]:
    """What a kernel binds. It is built when it is first seen."""
    if (target, call.name) not in BINDINGS:
        built = call.build()
        assert built.name == call.name
        BINDINGS[target, call.name] = [binding(each.role, each.access) for each in built.bindings]
    return BINDINGS[target, call.name]


@pytest.mark.parametrize("target", ["webgpu", "cuda"])
def test_heads_wider_than_a_workgroup_are_refused_by_name(target: str) -> None:
    variants = importlib.import_module(f"nearfar.targets.{target}.variants")
    steps = {}
    for value_dim in (256, 257):
        plan = make_plan(gated_delta(4, value_dim, wide=12 + 6 * value_dim, z_start=12))
        steps[value_dim] = plan.steps[-1], context_of(target, plan, ("float32",))
    assert variants.variants_of(*steps[256])
    with pytest.raises(UnsupportedModel, match="gated_delta: heads of 257 values; kernels of this target"):
        variants.variants_of(*steps[257])


def use_of(plan: Plan, step: Step) -> Use:
    op = OPS[step.op]
    return Use(op, {role: plan.shape_of(name) for role, name in step.inputs.items()}, {}, op.complete(step.attrs))


def context_of(target: str, plan: Plan, activations: tuple[str, ...]) -> Context:
    quantization = quant.by_name("q4f16")
    if target == "cpu":
        return CpuContext(plan, quantization, activations, by_name(None).levels)
    return Context(plan, quantization, activations)
