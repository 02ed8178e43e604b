"""take_rows, slice_columns, and zeros, which clears a result that is written in parts.

One thread: one column of one row.
One workgroup: 64 columns of one row.
"""

from __future__ import annotations

from ..ir.expr import Expr
from .builder import Kernel, KernelBuilder, Scalar, cast
from .projection import guard_below

THREADS = 64


def take_rows(name: str, rows: Expr, taken: Expr, columns: int) -> Kernel:
    """``taken`` of the ``rows`` of x, by the input "rows"."""
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", (rows, columns), "float32")
    indices = kernel.buffer("rows", (taken,), "int32")
    y = kernel.buffer("y", (taken, columns), "float32", write=True)
    row, column = row_and_column(kernel, taken, columns)
    with kernel.when(guard_below(column, columns, THREADS)):
        y[row, column] = x[indices[row], column]
    return kernel.finish()


def slice_columns(name: str, rows: Expr, columns: int, start: int, stop: int, x_dtype: str, y_dtype: str) -> Kernel:
    """Columns [start, stop) of ``columns``."""
    width = stop - start
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", (rows, columns), x_dtype)
    y = kernel.buffer("y", (rows, width), y_dtype, write=True)
    row, column = row_and_column(kernel, rows, width)
    with kernel.when(guard_below(column, width, THREADS)):
        y[row, column] = cast(x[row, start + column], y_dtype)
    return kernel.finish()


def zeros(name: str, rows: Expr, columns: int, dtype: str) -> Kernel:
    """Clear a result whose columns the following kernels do not all write."""
    kernel = KernelBuilder(name)
    y = kernel.buffer("y", (rows, columns), dtype, write=True)
    row, column = row_and_column(kernel, rows, columns)
    with kernel.when(guard_below(column, columns, THREADS)):
        y[row, column] = 0
    return kernel.finish()


def row_and_column(kernel: KernelBuilder, rows: Expr, columns: int) -> tuple[Scalar, Scalar]:
    """A thread's row and column."""
    block, row = kernel.grid(["ceildiv", columns, THREADS], rows)
    return row, kernel.let("column", block * THREADS + kernel.threads(THREADS))
