"""Projections with AMX: close to the op's result, and the same bits of a row in every batch."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from cpu_steps import Batch, Run, StepCase, StepLibrary, run_of
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
# By quantization: the activations, columns and rows of the weight, the optional inputs, and whether it is gated. 600
# columns are unpacked in two pieces; some columns end within a group, three tiles are no complete pairs, and 24 rows of
# half a gated weight are no complete tiles.
PROJECTIONS: dict[str, tuple[str, int, int, tuple[str, ...], bool]] = {
    "f32": ("float32", 600, 40, ("norm", "bias", "residual"), False),
    "f16": ("float32", 72, 48, ("norm",), True),
    "q8f16": ("int8", 72, 16, ("bias",), False),
    "q4f16": ("int8", 200, 64, ("norm",), True),
}


def case_of(quantization: str) -> StepCase:
    activation, columns, outputs, optional, gated = PROJECTIONS[quantization]
    shapes: dict[str, tuple[Any, ...]] = {
        "norm": ("vector", columns),
        "bias": ("vector", outputs),
        "residual": ("float32", "S", outputs),
    }
    inputs = {"x": ("float32", "S", columns), "weight": ("matrix", outputs, columns)}
    attrs: dict[str, Any] = {"eps": 1e-6} if "norm" in optional else {}
    attrs |= {} if gated else {"dtype": "float32"}
    op = "gated_linear" if gated else "linear"
    named = {role: shapes[role] for role in optional}
    return StepCase(f"{quantization}_matrix", op, {**inputs, **named}, attrs, [], activation, quantization)


CASES = {quantization: case_of(quantization) for quantization in PROJECTIONS}


class MatrixLibrary(StepLibrary):
    @cached_property
    def calls(self) -> dict[str, KernelCall]:
        return {call.name: call for case in self.cases for call in row_of(case).kernels}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> StepLibrary:
    return MatrixLibrary(tuple(CASES.values()), tmp_path_factory.mktemp("matrix"))


def row_of(case: StepCase) -> Variant:
    (row,) = case.variants((AMX,))
    return row


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_projection_is_as_precise_as_its_activations_in_every_batch(case: StepCase, library: StepLibrary) -> None:
    tolerance = INT8 if case.activation == "int8" else F32
    for size in SIZES:
        run = run_of(case, Batch({"S": size}))
        assert relative_error(library.outputs(row_of(case), run)["y"], run.expected["y"]) < tolerance, size


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_bits_of_a_row_do_not_depend_on_the_other_rows(case: StepCase, library: StepLibrary) -> None:
    run = run_of(case, Batch({"S": SIZES[1]}))
    every = library.outputs(row_of(case), run)["y"]
    first = {role: array[: SIZES[0]] if role in ("x", "residual", "y") else array for role, array in run.arrays.items()}
    first["x"] = first["x"].copy()
    first["x"][2], first["x"][3, 1], first["x"][4, 7] = 0, np.nan, np.inf
    fewer = library.outputs(row_of(case), Run({"S": SIZES[0]}, first, {}))["y"]
    others = [0, 1, *range(5, SIZES[0])]
    np.testing.assert_array_equal(fewer[others], every[others])
    assert np.isfinite(fewer[2]).all()
    assert not np.isfinite(fewer[3]).any()
    assert not np.isfinite(fewer[4]).all()


def test_a_plan_with_pages_has_no_kernels_of_amx() -> None:
    """Its tokens must not depend on the size of a batch."""
    case = CASES["f32"]
    plan = replace(case.plan, states={"kv": Buffer("kv", ("P", 2, 1, 16, 8), "activation")})
    for of_plan, expected in ((case.plan, [AMX.needs]), (plan, [])):
        context = CpuContext(of_plan, quant.by_name("f32"), ("float32",), (AMX,))
        assert [row.needs for row in variants_of(case.step, context)] == expected
