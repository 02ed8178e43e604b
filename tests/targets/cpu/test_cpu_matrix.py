"""Projections and attention with AMX: close to the op's result, and the same bits of a row in every batch."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
import pytest
from case_selection import chosen, usual_or_exhaustive
from cpu_cases import inputs_of
from cpu_steps import Batch, Inputs, Run, StepCase, StepLibrary, run_of
from projection_parts import parts_of
from ragged_cases import TEXTS, Attention, attention_of, texts
from tolerances import F32, INT8, relative_error

from nearfar.compiler import quant
from nearfar.compiler.ir.plan import Buffer
from nearfar.targets.cpu.levels import AMX, features
from nearfar.targets.cpu.variants import CpuContext, variants_of
from nearfar.targets.variant import KernelCall, Variant

pytestmark = pytest.mark.skipif(not set(AMX.needs) <= features(), reason="needs AMX")

# The second block of the first batch is half full; the second batch has more blocks than share unpacked weights, and
# ends in the first row of a block.
SIZES = (48, 1057)
NAN_OF_ONES = np.uint32(0x7FFFFFFF).view(np.float32)
OF_ROWS = ("x", "store0_b", "load1_b", "load2", "y")
# By quantization: the activations, columns and rows of the weight, the optional inputs, and whether it is gated. 600
# columns are unpacked in two pieces; some columns end within a group, three tiles are no complete pairs, and 24 rows of
# half a gated weight are no complete tiles.
PROJECTIONS: dict[str, tuple[str, int, int, tuple[str, ...], bool]] = {
    "f32": ("float32", 600, 40, ("norm", "bias", "residual"), False),
    "f16": ("float32", 72, 48, ("norm",), True),
    "q8f16": ("int8", 72, 16, ("bias",), False),
    "q4f16": ("int8", 200, 64, ("norm",), True),
    "q4f32": ("int8", 72, 40, ("stream",), False),
}


def case_of(quantization: str) -> StepCase:
    activation, columns, outputs, optional, gated = PROJECTIONS[quantization]
    parts = parts_of(
        columns,
        outputs,
        norm_eps=1e-6 if "norm" in optional else None,
        stream_eps=1e-2 if "stream" in optional else None,
        stream_factor=True,
        gated=gated,
        residual="residual" in optional,
    )
    inputs: Inputs = {"x": ("float32", "S", columns), "weight": ("matrix", outputs, columns), **inputs_of(parts)}
    inputs |= {"bias": ("vector", outputs)} if "bias" in optional else {}
    attrs = {"dtype": "float32", **parts.attrs}
    return StepCase(f"{quantization}_matrix", "linear", inputs, attrs, [], activation, quantization)


CASES = {quantization: case_of(quantization) for quantization in PROJECTIONS}
# Of each activation dtype, plain and gated.
USUAL = ("f32", "q8f16", "q4f16")
# By activations: the quantization, query heads, kv heads, their elements, whether a row sees only the keys before it,
# and the window. 96 elements are more than four registers of sums.
ATTENTIONS: dict[str, Attention] = {
    "float32": ("f32", 4, 2, 32, True, None),
    "int8": ("q8f16", 3, 3, 96, False, 20),
}
ATTENTION_CASES = {activation: attention_of(activation, *each) for activation, each in ATTENTIONS.items()}


class MatrixLibrary(StepLibrary):
    @cached_property
    def calls(self) -> dict[str, KernelCall]:
        return {call.name: call for case in self.cases for call in row_of(case).kernels}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> StepLibrary:
    cases = (*chosen(request, CASES).values(), *ATTENTION_CASES.values())
    return MatrixLibrary(cases, tmp_path_factory.mktemp("matrix"))


def row_of(case: StepCase) -> Variant:
    (row,) = case.variants((AMX,))
    return row


@pytest.mark.parametrize("name", usual_or_exhaustive(CASES, USUAL))
def test_a_projection_is_as_precise_as_its_activations_in_every_batch(name: str, library: StepLibrary) -> None:
    case = CASES[name]
    tolerance = INT8 if case.activation == "int8" else F32
    for size in SIZES:
        run = run_of(case, Batch({"S": size}))
        found = library.outputs(row_of(case), run)
        for role, expected in run.expected.items():
            assert relative_error(found[role], expected) < tolerance, (size, role)


@pytest.mark.parametrize("name", usual_or_exhaustive(CASES, USUAL))
def test_the_bits_of_a_row_do_not_depend_on_the_other_rows(name: str, library: StepLibrary) -> None:
    case = CASES[name]
    run = run_of(case, Batch({"S": SIZES[1]}))
    every = library.outputs(row_of(case), run)["y"]
    first = {role: array[: SIZES[0]] if role in OF_ROWS else array for role, array in run.arrays.items()}
    first["x"] = first["x"].copy()
    first["x"][2], first["x"][3, 1], first["x"][4, 7], first["x"][5, 3] = 0, np.nan, np.inf, NAN_OF_ONES
    fewer = library.outputs(row_of(case), Run({"S": SIZES[0]}, first, {}))["y"]
    others = [0, 1, *range(6, SIZES[0])]
    np.testing.assert_array_equal(fewer[others], every[others])
    assert np.isfinite(fewer[2]).all()
    assert not np.isfinite(fewer[3]).any()
    assert not np.isfinite(fewer[4]).all()
    assert not np.isfinite(fewer[5]).any()


@pytest.mark.parametrize("case", ATTENTION_CASES.values(), ids=ATTENTION_CASES)
def test_attention_is_as_precise_as_its_activations_and_the_same_with_other_texts(
    case: StepCase, library: StepLibrary
) -> None:
    row = row_of(case)
    assert "matrix_attention" in row.kernels[0].name
    run = run_of(case, texts(*TEXTS))
    found = library.outputs(row, run)["y"]
    assert relative_error(found, run.expected["y"]) < (INT8 if case.activation == "int8" else F32)
    alone = texts(TEXTS[-1])
    last = {role: array[-TEXTS[-1] :] for role, array in run.arrays.items() if role in ("qkv", "store0_b", "y")}
    again = library.outputs(row, Run(alone.dims, {**run.arrays, **last, **alone.arrays}, {}))["y"]
    np.testing.assert_array_equal(again, found[-TEXTS[-1] :])


def test_a_plan_with_pages_has_no_kernels_of_amx() -> None:
    """Its tokens must not depend on the size of a batch."""
    case = CASES["f32"]
    plan = replace(case.plan, states={"kv": Buffer("kv", ("P", 2, 1, 16, 8), "activation")})
    for of_plan, expected in ((case.plan, [AMX.needs]), (plan, [])):
        context = CpuContext(of_plan, quant.by_name("f32"), ("float32",), (AMX,))
        assert [row.needs for row in variants_of(case.step, context)] == expected
