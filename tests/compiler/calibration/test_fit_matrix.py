"""The fit of one matrix: against rounding to nearest, and against what the format can represent."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from nearfar.compiler.calibration.choice import CANDIDATES
from nearfar.compiler.calibration.fit import fit, row_errors
from nearfar.compiler.quant import by_name
from nearfar.compiler.quant.base import FloatArray
from nearfar.compiler.quant.codes import Codes

ROWS, COLUMNS = 24, 104


@pytest.fixture(scope="module")
def matrix() -> FloatArray:
    return (np.random.default_rng(1).standard_normal((ROWS, COLUMNS)) * 0.05).astype(np.float32)


@pytest.fixture(scope="module")
def hessian() -> FloatArray:
    """Of inputs whose columns depend on each other."""
    generator = np.random.default_rng(2)
    inputs = generator.standard_normal((512, COLUMNS)) @ generator.standard_normal((COLUMNS, COLUMNS))
    return (inputs.T @ inputs).astype(np.float32)


@pytest.mark.parametrize("form", CANDIDATES, ids=lambda form: form.name)
def test_planes_hold_exactly_the_fitted_matrix(form: Codes, matrix: FloatArray, hessian: FloatArray) -> None:
    fitted = fit(matrix, hessian, form)
    assert np.array_equal(form.unpack(fitted.planes(), COLUMNS), fitted.matrix())


def test_a_fit_has_less_than_half_of_the_error_of_rounding_to_nearest(matrix: FloatArray, hessian: FloatArray) -> None:
    fitted = fit(matrix, hessian, Codes(4, 32, "", "float16"))
    q4 = by_name("q4f16")
    difference = q4.unpack(q4.pack(matrix), COLUMNS) - matrix
    rounded = float(((difference @ hessian) * difference).sum())
    assert row_errors(fitted, matrix, hessian).sum() < 0.5 * rounded


@pytest.mark.parametrize("offset", ["", "b"])
def test_coordinate_descent_never_increases_the_error(offset: str, matrix: FloatArray, hessian: FloatArray) -> None:
    form = Codes(3, 32, offset, "float16")
    errors = [row_errors(fit(matrix, hessian, form, sweeps), matrix, hessian).sum() for sweeps in (0, 1, 2, 4)]
    # The descent is on the damped error.
    assert all(after < 1.001 * before for before, after in pairwise(errors))
    assert errors[-1] < 0.95 * errors[0]


def test_a_matrix_that_the_format_holds_is_found_again(hessian: FloatArray) -> None:
    form = Codes(4, 32, "", "float16")
    generator = np.random.default_rng(3)
    codes = generator.integers(0, 16, (ROWS, COLUMNS)).astype(np.uint8)
    # Every group uses the last code on one side, so its scale is determined.
    codes[:, ::32] = 0
    scales = generator.uniform(0.01, 0.02, (ROWS, form.scales_of(COLUMNS))).astype(np.float16)
    exact = form.unpack(form.store(codes, scales), COLUMNS)
    assert row_errors(fit(exact, hessian, form), exact, hessian).sum() < 1e-6 * float(((exact @ hessian) * exact).sum())


def test_columns_without_an_input_and_rows_of_zeros_are_fitted(matrix: FloatArray, hessian: FloatArray) -> None:
    some = matrix.copy()
    some[3] = 0
    dead = hessian.copy()
    dead[40:72] = 0
    dead[:, 40:72] = 0
    for form in CANDIDATES:
        found = fit(some, dead, form).matrix()
        assert np.isfinite(found).all()
        assert not found[3].any()
    assert np.isfinite(fit(some, np.zeros_like(hessian), CANDIDATES[0]).matrix()).all()
