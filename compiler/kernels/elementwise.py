"""Ops on elements that are steps of their own: one result from one element of each input.

One thread: one column of one row.
One workgroup: 128 columns of one row.
"""

from __future__ import annotations

from ..ir.expr import Expr
from ..ir.ops.parts import Part
from .builder import Kernel, KernelBuilder, cast
from .fold import Elements
from .maths import MATHS
from .projection import guard_below

THREADS = 128


def elementwise(
    name: str, rows: Expr, columns: int, part: Part, x_dtype: str = "float32", y_dtype: str = "float32"
) -> Kernel:
    kernel = KernelBuilder(name)
    elements = Elements(kernel, MATHS, part, rows, columns, x_dtype)
    y = kernel.buffer("y", (rows, columns), y_dtype, write=True)
    block, row = kernel.grid(["ceildiv", columns, THREADS], rows)
    column = kernel.let("column", block * THREADS + kernel.threads(THREADS))
    with kernel.when(guard_below(column, columns, THREADS)):
        y[row, column] = cast(elements.at(row, column), y_dtype)
    return kernel.finish()
