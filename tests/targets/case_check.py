"""Compares the outputs of kernels with the results of their op. It needs neither TVM nor a device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tolerances import KV_KERNEL, KV_ROUNDED, KV_ROUNDING, OF_KERNEL, relative_error

from nearfar.compiler.ir.kv_format import KV_FORMATS
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.ir.ops.kv_pages import dequantize_pages, page_rows


def check_outputs(
    what: object, dtype: str | None, expected_outputs: Mapping[str, Array], outputs: Mapping[str, bytes], kv: str
) -> None:
    """``dtype``: the dtype to which the kernel rounds operands, if it does; ``kv``: the format of pages. Raises
    AssertionError that names ``what``.
    """
    arrays = {
        role: np.frombuffer(outputs[role], expected.dtype, expected.size).reshape(expected.shape)
        for role, expected in expected_outputs.items()
    }
    codes = [role for role, expected in expected_outputs.items() if expected.dtype.kind == "u"]
    # Devices may break a tie between two codes differently; a token that sees one key only gets its value as it is.
    same_codes = all(np.array_equal(arrays[role], expected_outputs[role]) for role in codes)
    for role, expected in expected_outputs.items():
        found = arrays[role]
        if expected.dtype.kind == "i":
            np.testing.assert_array_equal(found, expected)
            continue
        dtypes = (str(expected.dtype), dtype)
        limit = max(OF_KERNEL.get(dtype, 0) for dtype in dtypes if dtype is not None)
        if codes:
            limit = KV_KERNEL[kv] if same_codes else KV_ROUNDING[kv]
        if expected.dtype.kind == "u":
            found, expected, limit = stored_pages(what, found, expected, kv)
        # Unused rows of pages contain NaN before and after.
        assert (np.isnan(found) == np.isnan(expected)).all(), (what, role)
        error = relative_error(np.nan_to_num(found.astype(np.float64)), np.nan_to_num(expected.astype(np.float64)))
        assert error < limit, (what, role, error)


def stored_pages(what: object, found: Array, expected: Array, kv: str) -> tuple[Array, Array, float]:
    """Pages of integers as floats, and the tolerance between them. Raises AssertionError if too many words differ."""
    assert (page_rows(found)[0] != page_rows(expected)[0]).sum() <= KV_ROUNDED * expected.size, what
    form = KV_FORMATS[kv]
    return dequantize_pages(found, form), dequantize_pages(expected, form), KV_ROUNDING[kv]
