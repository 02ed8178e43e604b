"""The error function of arrays is that of the C library."""

from __future__ import annotations

import math

import numpy as np

from nearfar.compiler.ir.ops.erf import BLOCK, LARGEST, SMALL, erf


def test_it_is_that_of_the_c_library() -> None:
    edges = [0.0, -0.0, SMALL, np.nextafter(SMALL, 1), -SMALL, LARGEST, 27.0, math.inf, -math.inf, 5e-324, 1e-9]
    x = np.append(np.linspace(-7, 7, BLOCK + 1 - len(edges)), edges)
    expected = np.array([math.erf(value) for value in x])
    np.testing.assert_allclose(erf(x), expected, rtol=0, atol=3e-16)
    # Near zero, the relative error is as small.
    tiny = np.linspace(-1e-3, 1e-3, 50, dtype=np.float32).reshape(5, 10)
    np.testing.assert_allclose(erf(tiny), np.array([[math.erf(value) for value in row] for row in tiny]), rtol=1e-15)
    assert np.isnan(erf(np.array([math.nan]))[0])
