"""Kernels that compute each element of their result for itself, on GPUs and, with ``isa``, on CPUs: ops on elements,
rows and columns of an array, and zeros. `KernelBuilder.each` and `CpuKernelBuilder.each` divide the work.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir.expr import Expr
from ..ir.ops.parts import Part
from .builder import Array, Kernel, KernelBuilder, Scalar, cast, number
from .cpu.activations import MATHS as CPU_MATHS
from .cpu.builder import CpuKernelBuilder, Isa
from .fold import Elements
from .maths import MATHS
from .vectors import ramp, with_lanes


def elementwise(
    name: str,
    rows: Expr,
    columns: int,
    part: Part,
    x_dtype: str = "float32",
    y_dtype: str = "float32",
    up_dtype: str = "float32",
    isa: Isa | None = None,
) -> Kernel:
    """An op of `ir/ops/elementwise.py`."""
    kernel = builder(name, isa)
    elements = Elements(kernel, CPU_MATHS if isa else MATHS, part, rows, columns, x_dtype, up_dtype)
    y = kernel.buffer("y", (rows, columns), y_dtype, write=True)
    return filled(kernel, y, rows, columns, elements.at, threads=128)


def take_rows(name: str, rows: Expr, batch: Expr, columns: int, isa: Isa | None = None) -> Kernel:
    """``batch`` of the ``rows`` of x, by the input "rows"."""
    kernel = builder(name, isa)
    x = kernel.buffer("x", (rows, columns), "float32")
    indices = kernel.buffer("rows", (batch,), "int32")
    y = kernel.buffer("y", (batch, columns), "float32", write=True)
    return filled(kernel, y, batch, columns, lambda row, column, lanes: x[indices[row], ramp(column, lanes)])


def slice_columns(
    name: str, rows: Expr, columns: int, start: int, stop: int, x_dtype: str, y_dtype: str, isa: Isa | None = None
) -> Kernel:
    """Columns [start, stop) of ``columns``."""
    kernel = builder(name, isa)
    x = kernel.buffer("x", (rows, columns), x_dtype)
    y = kernel.buffer("y", (rows, stop - start), y_dtype, write=True)
    return filled(kernel, y, rows, stop - start, lambda row, column, lanes: x[row, ramp(start + column, lanes)])


def zeros(name: str, rows: Expr, columns: int, dtype: str) -> Kernel:
    """Clear a result whose columns the following kernels do not all write. For GPUs."""
    kernel = KernelBuilder(name)
    y = kernel.buffer("y", (rows, columns), dtype, write=True)
    return filled(kernel, y, rows, columns, lambda *_: number(0, dtype))


def builder(name: str, isa: Isa | None) -> KernelBuilder:
    return KernelBuilder(name) if isa is None else CpuKernelBuilder(name, isa)


def filled(
    kernel: KernelBuilder,
    y: Array,
    rows: Expr,
    columns: int,
    value: Callable[[Scalar, Scalar, int], Scalar],
    threads: int = 64,
) -> Kernel:
    """Finish a kernel that sets y (rows, columns) to the ``value`` of each row from a column on, in several lanes."""

    def store(row: Scalar, column: Scalar, lanes: int) -> None:
        y[row, ramp(column, lanes)] = cast(value(row, column, lanes), with_lanes(str(y.buffer.dtype), lanes))

    kernel.each(rows, columns, store, threads)
    return kernel.finish()
