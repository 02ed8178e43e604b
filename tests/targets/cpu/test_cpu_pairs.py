"""Attention with VNNI's products of 16-bit integers: as precise as its activations, and the same bits of a row with any
other texts.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pytest
from cpu_steps import Run, StepCase, StepLibrary, run_of
from ragged_cases import TEXTS, Attention, attention_of, texts
from tolerances import F16_ROUNDING, INT8, relative_error

from nearfar.targets.cpu.levels import AVX512, VNNI, features
from nearfar.targets.variant import KernelCall, Variant

pytestmark = pytest.mark.skipif(not set(VNNI.needs) <= features(), reason="needs VNNI")

# Weights of both kinds; every key of a row, those before it, and a window of them. 96 elements are more than four
# vectors of sums.
ATTENTIONS: dict[str, tuple[str, Attention]] = {
    "float16": ("float16", ("f16", 4, 2, 32, True, None)),
    "float16_of_integers": ("float16", ("q8f16", 2, 2, 64, False, None)),
    "int8": ("int8", ("q8f16", 3, 3, 96, False, 20)),
}
CASES = {name: attention_of(activation, *each) for name, (activation, each) in ATTENTIONS.items()}


class PairLibrary(StepLibrary):
    @cached_property
    def calls(self) -> dict[str, KernelCall]:
        return {call.name: call for case in self.cases for call in row_of(case).kernels}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> StepLibrary:
    # test_cpu_runner.py runs optimized kernels with VNNI, too.
    return PairLibrary(tuple(CASES.values()), tmp_path_factory.mktemp("pairs"), optimized=False)


def row_of(case: StepCase) -> Variant:
    """The variant of large batches, with which all smaller ones share the attention."""
    rows = [row for row in case.variants((VNNI, AVX512)) if row.needs == VNNI.needs]
    assert len({row.kernels[0].name for row in rows}) == 1
    return rows[-1]


@pytest.mark.parametrize("name", CASES)
def test_attention_is_as_precise_as_its_activations_and_the_same_with_other_texts(
    name: str, library: StepLibrary
) -> None:
    case = CASES[name]
    row = row_of(case)
    assert "pair_attention" in row.kernels[0].name
    run = run_of(case, texts(*TEXTS))
    found = library.outputs(row, run)["y"]
    assert relative_error(found, run.expected["y"]) < (INT8 if case.activation == "int8" else F16_ROUNDING)
    alone = texts(TEXTS[-1])
    last = {role: array[-TEXTS[-1] :] for role, array in run.arrays.items() if role in ("qkv", "store0_b", "y")}
    again = library.outputs(row, Run(alone.dims, {**run.arrays, **last, **alone.arrays}, {}))["y"]
    np.testing.assert_array_equal(again, found[-TEXTS[-1] :])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_reach_the_rows_that_see_them(value: float, library: StepLibrary) -> None:
    case = CASES["float16_of_integers"]
    run = run_of(case, texts(*TEXTS))
    qkv = run.arrays["qkv"].copy()
    # A value of the second text's third row.
    qkv[TEXTS[0] + 2, 4 * 64] = value
    found = library.outputs(row_of(case), Run(run.dims, {**run.arrays, "qkv": qkv}, {}))["y"]
    are_of_text = np.repeat([0, 1, 0, 0], TEXTS) == 1
    assert not np.isfinite(found[are_of_text]).all(axis=1).any()
    assert np.isfinite(found[~are_of_text]).all()


def test_activations_in_float32_keep_products_of_floats() -> None:
    case = attention_of("float32", "f16", 2, 2, 64, False, None)
    assert not any("pair_attention" in call.name for row in case.variants((VNNI, AVX512)) for call in row.kernels)
