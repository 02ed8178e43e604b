"""rms_norm: groups of columns scaled to unit root mean square, then each column by its weight, plus a bias and a
residual, times a factor. A centered norm subtracts the group's mean first (LayerNorm).

One workgroup: one group of one row.
One thread: every 64th column of the group; then the threads' sums are added up: for a centered norm those of the
columns, then those of the squares.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..ir.expr import Expr
from .builder import Kernel, KernelBuilder, Scalar, cast, number
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
    centered: bool = False,
    bias: bool = False,
    residual: bool = False,
    factor: bool = False,
    y_in_scratch: bool = False,
) -> Kernel:
    """``width`` columns form a group: an entire row, or one of its heads. ``y_in_scratch``: y is the scratch buffer
    "normed", for the next kernel of the step.
    """
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", (rows, columns), x_dtype)
    weight = kernel.buffer("weight", (width,), "float32")
    shift = kernel.buffer("bias", (width,), "float32") if bias else None
    addend = kernel.buffer("residual", (rows, columns), "float32") if residual else None
    multiplier = kernel.buffer("factor", (1,), "float32") if factor else None
    declare = partial(kernel.scratch, "normed") if y_in_scratch else partial(kernel.buffer, "y")
    y = declare((rows, columns), y_dtype, write=True)
    group, row = kernel.grid(columns // width, rows)
    thread = kernel.threads(THREADS)
    steps = -(-width // THREADS)

    def summed(what: str, term: Callable[[Scalar], Scalar]) -> Scalar:
        """The sum of a term of each column."""
        total = kernel.local(f"total_{what}", 1, "float32", fill=0)
        with kernel.loop("step", steps) as step:
            column = kernel.let("column", step * THREADS + thread)
            with kernel.when(guard_below(column, width, THREADS)):
                total[0] = total[0] + term(kernel.let("each", load(column)))
        return kernel.folded(what, thread, THREADS, total[0], lambda one, other: one + other)

    def load(column: Scalar) -> Scalar:
        value = cast(x[row, group * width + column], "float32")
        return value if mean is None else value - mean

    mean = None
    if centered:
        mean = kernel.let("mean", summed("columns", lambda each: each) * number(1 / width, "float32"))
    squares = summed("squares", lambda each: each * each)
    scale = kernel.let("scale", rms_factor(squares, width, eps))
    with kernel.loop("step", steps) as step:
        column = kernel.let("column", step * THREADS + thread)
        with kernel.when(guard_below(column, width, THREADS)):
            value = load(column) * scale * weight[column]
            if shift is not None:
                value = value + shift[column]
            if addend is not None:
                value = value + addend[row, group * width + column]
            if multiplier is not None:
                value = value * multiplier[0]
            y[row, group * width + column] = cast(value, y_dtype)
    return kernel.finish()
