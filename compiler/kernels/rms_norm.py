"""rms_norm: groups of columns scaled to unit root mean square, then each column by its weight, plus a residual, times a
factor.

One workgroup: one group of one row.
One thread: every 64th column of the group; then the threads' sums of squares are added up.
"""

from __future__ import annotations

from ..ir.expr import Expr
from .builder import Kernel, KernelBuilder, cast
from .maths import rms_factor
from .projection import guard_below

THREADS = 64


def rms_norm(
    name: str,
    rows: Expr,
    columns: int,
    width: int,
    eps: float,
    x_dtype: str,
    y_dtype: str,
    *,
    residual: bool = False,
    factor: bool = False,
) -> Kernel:
    """``width`` columns form a group: an entire row, or one of its heads."""
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", (rows, columns), x_dtype)
    weight = kernel.buffer("weight", (width,), "float32")
    addend = kernel.buffer("residual", (rows, columns), "float32") if residual else None
    multiplier = kernel.buffer("factor", (1,), "float32") if factor else None
    y = kernel.buffer("y", (rows, columns), y_dtype, write=True)
    group, row = kernel.grid(columns // width, rows)
    thread = kernel.threads(THREADS)
    total = kernel.local("total", 1, "float32", fill=0)
    steps = -(-width // THREADS)
    with kernel.loop("step", steps) as step:
        column = kernel.let("column", step * THREADS + thread)
        with kernel.when(guard_below(column, width, THREADS)):
            each = kernel.let("each", cast(x[row, group * width + column], "float32"))
            total[0] = total[0] + each * each
    squares = kernel.folded("squares", thread, THREADS, total[0], lambda one, other: one + other)
    scale = kernel.let("scale", rms_factor(squares, width, eps))
    with kernel.loop("step", steps) as step:
        column = kernel.let("column", step * THREADS + thread)
        with kernel.when(guard_below(column, width, THREADS)):
            value = cast(x[row, group * width + column], "float32") * scale * weight[column]
            if addend is not None:
                value = value + addend[row, group * width + column]
            if multiplier is not None:
                value = value * multiplier[0]
            y[row, group * width + column] = cast(value, y_dtype)
    return kernel.finish()
