"""Ops on single elements of rows that are steps of their own, and slice_columns. One task: one row."""

from __future__ import annotations

from collections.abc import Callable

from ...ir.expr import Expr
from ...ir.ops.parts import Part
from ..builder import Array, Kernel, Scalar, cast
from ..fold import Elements
from ..vectors import ramp, with_lanes
from .activations import MATHS
from .builder import CpuKernelBuilder, Isa
from .rows import each_vector


def elementwise(
    name: str, *, isa: Isa, rows: Expr, columns: int, part: Part, x_dtype: str = "float32", y_dtype: str = "float32"
) -> Kernel:
    kernel = CpuKernelBuilder(name)
    elements = Elements(kernel, MATHS, part, rows, columns, x_dtype)
    y = kernel.buffer("y", (rows, columns), y_dtype, write=True)

    def value(row: Scalar, start: Scalar, lanes: int) -> Scalar:
        return cast(elements.at(row, start, lanes), with_lanes(y_dtype, lanes))

    return on_vectors(kernel, isa, rows, columns, y, value)


def slice_columns(
    name: str, *, isa: Isa, batch: Expr, columns: int, start: int, stop: int, x_dtype: str, y_dtype: str
) -> Kernel:
    """x (batch, columns) -> its columns [start, stop)."""
    kernel = CpuKernelBuilder(name)
    x = kernel.buffer("x", (batch, columns), x_dtype)
    y = kernel.buffer("y", (batch, stop - start), y_dtype, write=True)

    def value(row: Scalar, first: Scalar, lanes: int) -> Scalar:
        return cast(x[row, ramp(first + start, lanes)], with_lanes(y_dtype, lanes))

    return on_vectors(kernel, isa, batch, stop - start, y, value)


def on_vectors(
    kernel: CpuKernelBuilder,
    isa: Isa,
    batch: Expr,
    columns: int,
    y: Array,
    value: Callable[[Scalar, Scalar, int], Scalar],
) -> Kernel:
    """Finish a kernel that sets each vector of y (batch, columns) to ``value`` of its row, start and lanes."""
    with kernel.tasks("row", batch) as row:

        def store(start: Scalar, lanes: int) -> None:
            y[row, ramp(start, lanes)] = value(row, start, lanes)

        each_vector(kernel, columns, isa.lanes, store)
    return kernel.finish()
