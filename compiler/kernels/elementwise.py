"""add, scale, gate, gate_halves, soft_cap and fake_quantize: one result from one element of each operand.

One thread: one column of one row.
One workgroup: 128 columns of one row.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir.expr import Expr
from .builder import Kernel, KernelBuilder, Scalar, cast, number
from .maths import fake_quantized, gated, soft_capped
from .projection import guard_below

THREADS = 128


def add(name: str, rows: Expr, columns: int) -> Kernel:
    kernel = KernelBuilder(name)
    a = kernel.buffer("a", (rows, columns), "float32")
    b = kernel.buffer("b", (rows, columns), "float32")
    return each_column(kernel, rows, columns, lambda row, column: a[row, column] + b[row, column])


def scale(name: str, rows: Expr, columns: int) -> Kernel:
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", (rows, columns), "float32")
    factor = kernel.buffer("factor", (1,), "float32")
    return each_column(kernel, rows, columns, lambda row, column: x[row, column] * factor[0])


def gate(name: str, rows: Expr, columns: int, activation: str) -> Kernel:
    kernel = KernelBuilder(name)
    gates = kernel.buffer("gate", (rows, columns), "float32")
    up = kernel.buffer("up", (rows, columns), "float32")
    return each_column(
        kernel,
        rows,
        columns,
        lambda row, column: gated(activation, kernel.let("each", gates[row, column]), up[row, column]),
    )


def gate_halves(name: str, rows: Expr, columns: int, activation: str) -> Kernel:
    """``columns`` is the number of columns of the result."""
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", (rows, 2 * columns), "float32")
    return each_column(
        kernel,
        rows,
        columns,
        lambda row, column: gated(activation, kernel.let("each", x[row, column]), x[row, columns + column]),
    )


def soft_cap(name: str, rows: Expr, columns: int, scale: float, cap: float | None) -> Kernel:
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", (rows, columns), "float32")

    def value(row: Scalar, column: Scalar) -> Scalar:
        scaled = x[row, column] * number(scale, "float32")
        return scaled if cap is None else soft_capped(kernel, cap, scaled)

    return each_column(kernel, rows, columns, value)


def fake_quantize(name: str, rows: Expr, columns: int, scale: float, x_dtype: str, y_dtype: str) -> Kernel:
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", (rows, columns), x_dtype)

    def value(row: Scalar, column: Scalar) -> Scalar:
        return cast(fake_quantized(kernel, cast(x[row, column], "float32"), scale), y_dtype)

    return each_column(kernel, rows, columns, value, y_dtype)


def each_column(
    kernel: KernelBuilder,
    rows: Expr,
    columns: int,
    value: Callable[[Scalar, Scalar], Scalar],
    dtype: str = "float32",
) -> Kernel:
    """y[row, column] = value(row, column) for all rows and columns."""
    y = kernel.buffer("y", (rows, columns), dtype, write=True)
    block, row = kernel.grid(["ceildiv", columns, THREADS], rows)
    column = kernel.let("column", block * THREADS + kernel.threads(THREADS))
    with kernel.when(guard_below(column, columns, THREADS)):
        y[row, column] = value(row, column)
    return kernel.finish()
