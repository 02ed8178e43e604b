"""Every op on CPUs: all variants of a step at all levels of instruction sets compute the op's result, and the same
bits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from case_selection import chosen, is_exhaustive, names_of, selected
from cpu_cases import all_cases
from cpu_steps import Run, StepLibrary, check, objects_of, random_array, run_of, runs_on

from nearfar.compiler.ir.ops import OPS
from nearfar.compiler.ir.ops.norms import STORE
from nearfar.targets.cpu.levels import ARCHS
from nearfar.targets.cpu.link import link
from nearfar.targets.variant import Variant

CASES = selected("cpu", all_cases())
# Of attention, with 100 tokens.
(WINDOW,) = (
    case.name for case in all_cases() if case.op == "attention" and case.attrs["window"] == 100 and not case.exhaustive
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> StepLibrary:
    # test_cpu_linear.py and test_cpu_runner.py run optimized kernels, too.
    cases = tuple(chosen(request, CASES, WINDOW).values())
    return StepLibrary(cases, tmp_path_factory.mktemp("kernels"), optimized=is_exhaustive(request))


@pytest.mark.parametrize("name", names_of(CASES))
def test_every_variant_of_a_step_computes_its_op_and_the_same_bits(name: str, library: StepLibrary) -> None:
    case = CASES[name]
    rows = list(case.runnable())
    ran = set()
    for batch in case.batches:
        run = run_of(case, batch)
        first = None
        for number, (level, row) in enumerate(rows):
            if not runs_on(row, run.dims):
                continue
            ran.add(number)
            outputs = library.outputs(row, run)
            what = (name, level.name, row.kernels[-1].name, dict(run.dims))
            check(case, run, outputs, what)
            bits = {role: outputs[role].tobytes() for role in run.expected}
            first = first or bits
            assert bits == first or not case.same_bits, what
    assert ran == set(range(len(rows))), "a variant that no batch runs"


def test_the_time_of_a_window_does_not_grow_with_the_context(library: StepLibrary) -> None:
    case = CASES[WINDOW]

    def seconds(row: Variant, position: int) -> float:
        dims = {"S": 1, "B": 1, "P": 1, "L": position // 16 + 1, "T": position + 1}
        shapes = {"q": (1, 14 * 24), "kv": (1, 2, 2, 16, 24), "y": (1, 14 * 24), "sinks": (14,)}
        kinds = {role: "vector" if role == "sinks" else "activation" for role in shapes}
        arrays = {
            role: random_array(np.random.default_rng(0), kinds[role], shape, case.activation)
            for role, shape in shapes.items()
        }
        integers = {
            "positions": [position],
            "seq_starts": [0, 1],
            "page_indptr": [0, dims["L"]],
            "page_ids": [0] * dims["L"],
        }
        run = Run(dims, {**arrays, **{role: np.array(values, np.int32) for role, values in integers.items()}}, {})
        return min(library.seconds(row, run) for _ in range(5))

    for _, row in case.runnable():
        # Reading ten million keys takes seconds, whatever else the machine does.
        assert seconds(row, 10_000_000) < seconds(row, 200) + 0.5


def test_the_cases_cover_every_op_attribute_optional_input_and_dtype() -> None:
    usual = [case for case in CASES.values() if not case.exhaustive]
    assert {case.op for case in usual} == OPS.keys()
    for name, op in OPS.items():
        cases = [case for case in usual if case.op == name]
        assert {attr for case in cases for attr in case.step.attrs} == op.attrs.keys(), name
        roles = {role for case in cases for role in case.inputs if role not in op.of_parts(case.step.attrs)}
        assert roles == {*op.inputs, *op.optional}, name
        for role, kinds in {**op.inputs, **op.optional}.items():
            assert {case.inputs[role][0] for case in cases if role in case.inputs} == set(kinds), (name, role)
    linears = [case for case in usual if case.op == "linear"]
    assert {part["op"] for case in linears for part in case.attrs["store"]} == STORE.ops.keys()


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("op", OPS)
def test_every_op_ends_in_a_row_for_any_batch_on_the_base_level(op: str, arch: str) -> None:
    for case in CASES.values():
        if case.op == op:
            last = case.variants(ARCHS[arch].levels)[-1]
            assert last.when is None
            assert last.needs == ARCHS[arch].levels[-1].needs == ()
            assert {call.facts["isa"] for call in last.kernels} == {ARCHS[arch].levels[-1].isa}


def test_the_kernels_of_every_op_compile_for_aarch64(request: pytest.FixtureRequest) -> None:
    arch = ARCHS["aarch64"]
    # The first case of each op.
    cases = {case.op: case for case in reversed(CASES.values())}
    rows = [row for case in cases.values() for row in case.variants(arch.levels)]
    # One kernel of each template for each level.
    of_templates = {(call.template, call.facts["isa"]): call for row in rows for call in row.kernels}
    calls = {call.name: call for call in of_templates.values()}
    _, objects = objects_of(arch, calls, optimized=is_exhaustive(request))
    library = link(objects, arch.triple)
    for name in calls:
        assert f"\0__tvm_ffi_{name}\0".encode() in library, name


def test_equal_facts_make_one_kernel_and_other_facts_another() -> None:
    case = CASES["rms_norm_1x37_float32_float32"]
    again = replace(case, name="again", attrs=dict(reversed(list(case.attrs.items()))))
    other_eps, other_width = replace(case, attrs={**case.attrs, "eps": 1e-5}), CASES["rms_norm_1x1_float32_float32"]
    names = [
        {call.name for row in each.variants(ARCHS["x86_64"].levels) for call in row.kernels}
        for each in (case, again, other_eps, other_width)
    ]
    assert names[0] == names[1]
    assert len(names[0] | names[2] | names[3]) == len(names[0]) + len(names[2]) + len(names[3])
