"""Compares the outputs of kernels with the results of their op. It needs neither TVM nor a device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tolerances import OF_KERNEL, Q8_KERNEL, Q8_ROUNDED, Q8_ROUNDING, relative_error

from nearfar.compiler.ir.ops import Array
from nearfar.compiler.ir.ops.kv_pages import dequantize_pages, page_rows


def check_outputs(
    what: object, dtype: str | None, expected_outputs: Mapping[str, Array], outputs: Mapping[str, bytes]
) -> None:
    """``dtype``: the dtype to which the kernel rounds operands, if it does. Raises AssertionError that names
    ``what``.
    """
    quantized = any(expected.dtype.kind == "u" for expected in expected_outputs.values())
    for role, expected in expected_outputs.items():
        found = np.frombuffer(outputs[role], expected.dtype, expected.size).reshape(expected.shape)
        if expected.dtype.kind == "i":
            np.testing.assert_array_equal(found, expected)
            continue
        dtypes = (str(expected.dtype), dtype)
        limit = Q8_KERNEL if quantized else max(OF_KERNEL.get(dtype, 0) for dtype in dtypes if dtype is not None)
        if expected.dtype.kind == "u":
            assert (page_rows(found)[0] != page_rows(expected)[0]).sum() <= Q8_ROUNDED * expected.size, (what, role)
            found, expected, limit = dequantize_pages(found), dequantize_pages(expected), Q8_ROUNDING
        # Unused rows of pages contain NaN before and after.
        assert (np.isnan(found) == np.isnan(expected)).all(), (what, role)
        error = relative_error(np.nan_to_num(found.astype(np.float64)), np.nan_to_num(expected.astype(np.float64)))
        assert error < limit, (what, role, error)
