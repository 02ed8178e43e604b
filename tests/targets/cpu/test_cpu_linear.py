"""Projections over tiles of weights: the same bits at every level, block size and batch size, compared with exact
integers in numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from case_selection import names_in, usual_or_exhaustive
from cpu_cases import inputs_of
from cpu_steps import ARCH, Batch, Run, StepCase, StepLibrary, run_of
from projection_parts import parts_of
from tolerances import OF_KERNEL, relative_error

from nearfar.compiler import quant
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.ir.ops.elementwise import silu
from nearfar.compiler.kernels.cpu.integer_dot import RowLayout
from nearfar.compiler.quant.base import GROUP
from nearfar.compiler.quant.layout import store_rows
from nearfar.targets.cpu.levels import Level
from nearfar.targets.variant import Variant

pytestmark = pytest.mark.skipif(ARCH.name != "x86_64", reason="the levels compared here are those of x86-64")

EPS = 1e-6
SIZES = (1, 5, 19)
# By quantization: columns and rows of the weight, the optional inputs, and whether it is gated. Some columns end within
# a group, some outputs end within a tile, and so do the halves of some gated weights. Three tiles are no complete
# pairs.
PROJECTIONS: dict[str, tuple[int, int, tuple[str, ...], bool]] = {
    "q4f16": (200, 40, ("norm", "bias", "residual"), False),
    "q4f32": (64, 64, ("bias",), True),
    "q8f16": (72, 48, ("norm",), True),
    "f16": (72, 35, ("norm",), False),
    "f32": (40, 96, ("bias",), True),
}
# Quantizations by the number of bits of the integer activations.
FORMATS = {16: tuple(PROJECTIONS), 8: ("q4f32", "q8f16")}


def all_cases() -> Iterator[tuple[int, StepCase]]:
    for bits, quantizations in FORMATS.items():
        for quantization in quantizations:
            columns, outputs, optional, gated = PROJECTIONS[quantization]
            eps = EPS if "norm" in optional else None
            parts = parts_of(columns, outputs, norm_eps=eps, gated=gated, residual="residual" in optional)
            inputs = {
                "x": ("float32", "S", columns),
                "weight": ("matrix", outputs, columns),
                **({"bias": ("vector", outputs)} if "bias" in optional else {}),
                **inputs_of(parts),
            }
            attrs = {"dtype": "float32", **parts.attrs}
            activation = "int8" if bits == 8 else "float32"
            yield bits, StepCase(f"{quantization}_int{bits}", "linear", inputs, attrs, [], activation, quantization)


CASES = {case.name: (bits, case) for bits, case in all_cases()}
# A float and integers of each width; the other cases repeat their kernels in other formats.
USUAL = ("q4f16_int16", "f32_int16", "q4f32_int8")
INTEGER_CASES = [name for name, (_, case) in CASES.items() if case.quantization.startswith("q")]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> StepLibrary:
    names = names_in(request)
    cases = [case for name, (_, case) in CASES.items() if name in names]
    return StepLibrary(cases, tmp_path_factory.mktemp("linear"))


@cache
def rows_of(name: str) -> tuple[tuple[Level, Variant], ...]:
    return tuple(CASES[name][1].runnable())


def matrix_of(case: StepCase) -> Array:
    _, rows, columns = case.inputs["weight"]
    matrix: Array = np.random.default_rng(len(case.quantization)).normal(size=(rows, columns)) / np.sqrt(columns)
    return matrix.astype(np.float32)


@cache
def made(name: str) -> Run:
    """The largest batch; smaller ones are its first rows."""
    case = CASES[name][1]
    return run_of(case, Batch({"S": SIZES[-1]}, {"weight": matrix_of(case)}))


def first_rows(run: Run, size: int) -> Run:
    batched = {role: array[:size] if role in ("x", "store0_b", "y") else array for role, array in run.arrays.items()}
    return Run({"S": size}, batched, {"y": run.expected["y"][:size]})


@pytest.mark.parametrize("name", usual_or_exhaustive(CASES, USUAL))
def test_a_row_is_the_same_to_the_last_bit_at_every_level_in_every_block_and_batch(
    name: str, library: StepLibrary
) -> None:
    run = made(name)
    expected = library.outputs(rows_of(name)[-1][1], run)["y"]
    for level, row in rows_of(name):
        for size in SIZES:
            found = library.outputs(row, first_rows(run, size))["y"]
            np.testing.assert_array_equal(found, expected[:size], f"{level.name}, {row.when}, {size} rows")


@pytest.mark.parametrize("name", usual_or_exhaustive(INTEGER_CASES, USUAL))
def test_integers_are_exact(name: str, library: StepLibrary) -> None:
    bits, case = CASES[name]
    run = made(name)
    expected = emulated(case, bits, run, matrix_of(case))
    # Both use float32, and only the order of sums differs.
    assert relative_error(library.outputs(rows_of(name)[-1][1], run)["y"], expected) < 1e-5
    assert relative_error(expected, run.expected["y"]) < OF_KERNEL[f"int{bits}"]


@pytest.mark.parametrize(
    "name", usual_or_exhaustive((name for name in INTEGER_CASES if "q4f32" in name or "q8" in name), USUAL)
)
def test_the_largest_codes_do_not_overflow(name: str, library: StepLibrary) -> None:
    bits, case = CASES[name]
    # One weight of the other sign sets the scale, so all others have the largest or the smallest code.
    matrix = np.full(case.inputs["weight"][1:], {"q4f32": 8.0, "q8f16": 127.0}[case.quantization], np.float32)
    matrix[::2] *= -1
    matrix[:, ::GROUP] *= -1
    x = np.tile(np.array([[1], [-1]], np.float32), (10, matrix.shape[1]))[: SIZES[-1]]
    planes = quant.by_name(case.quantization).pack(matrix)
    run = made(name)
    stored = {f"weight.{plane}": store_rows("tiles16", array) for plane, array in planes.items()}
    wrong_sign = replace(run, arrays={**run.arrays, **stored, "x": x})
    expected = emulated(case, bits, wrong_sign, matrix)
    for level, row in rows_of(name):
        assert relative_error(library.outputs(row, wrong_sign)["y"], expected) < 1e-5, level.name


@pytest.mark.parametrize("name", usual_or_exhaustive(CASES, USUAL))
def test_a_row_of_zeros_and_one_that_is_not_finite_stay_by_themselves(name: str, library: StepLibrary) -> None:
    run = made(name)
    x = run.arrays["x"].copy()
    x[2], x[3, 1], x[4, 7] = 0, np.nan, np.inf
    others = [0, 1, *range(5, SIZES[-1])]
    for level, row in rows_of(name):
        before = library.outputs(row, run)["y"]
        found = library.outputs(row, replace(run, arrays={**run.arrays, "x": x}))["y"]
        np.testing.assert_array_equal(found[others], before[others])
        assert np.isfinite(found[2]).all()
        assert not np.isfinite(found[3]).any(), level.name
        assert not np.isfinite(found[4]).all(), level.name


def emulated(case: StepCase, bits: int, run: Run, matrix: Array) -> Array:
    """The projection with activations of ``bits`` bits: exact integers, everything else in float64."""
    arrays, layout = run.arrays, RowLayout(bits, as_bytes=False)
    x, factor = arrays["x"], np.ones(len(arrays["x"]))
    if "load0_weight" in arrays:
        factor = 1 / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1) + EPS)
        x = x * arrays["load0_weight"]
    groups = np.pad(x, ((0, 0), (0, -x.shape[1] % GROUP))).reshape(len(x), -1, GROUP).astype(np.float32)
    of_groups = np.abs(groups).max(axis=-1)
    of_blocks = np.maximum.reduceat(of_groups, range(0, of_groups.shape[1], layout.scale_groups), axis=1)
    largest = np.repeat(of_blocks, layout.scale_groups, axis=1)[:, : of_groups.shape[1]]
    inverse = np.divide(np.float32(layout.largest), largest, out=np.zeros_like(largest), where=largest > 0)
    codes = np.rint(groups * inverse[..., None]).astype(np.int64)
    fmt = quant.by_name(case.quantization)
    planes = fmt.pack(matrix)
    ones = {"q": planes["q"], "s": np.ones_like(planes["s"])}
    weights = fmt.unpack(ones, codes.shape[1] * GROUP).astype(np.int64).reshape(len(matrix), -1, GROUP)
    dots = np.einsum("sgk,ngk->sgn", codes, weights)
    scales = largest[..., None] * planes["s"].astype(np.float64).T / layout.largest
    sums: Array = (dots * scales).sum(axis=1) * factor[:, None]
    sums = sums + arrays.get("bias", 0)
    if "store0_b" not in arrays and case.attrs["store"]:
        gate, up = np.split(sums, 2, axis=1)
        sums = silu(gate) * up
    result: Array = sums + arrays.get("store0_b", 0)
    return result
