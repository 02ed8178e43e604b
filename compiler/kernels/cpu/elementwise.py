"""Ops on single elements of rows: add, scale, gate, gate_halves, soft_cap, fake_quantize, slice_columns.
One task: one row.

Passes fuse these ops into projections, so these kernels are simple.
"""

from __future__ import annotations

from collections.abc import Callable

from ...ir.expr import Expr
from ..builder import Array, Kernel, Scalar, cast
from .activations import gated
from .builder import CpuKernelBuilder, Isa, of, ramp, wide
from .math import fake_quantized, like, tanh
from .rows import each_vector


def add(name: str, *, isa: Isa, batch: Expr, columns: int) -> Kernel:
    """a, b (batch, columns) -> a + b."""
    kernel = CpuKernelBuilder(name)
    a, b = (kernel.buffer(role, (batch, columns), "float32") for role in ("a", "b"))
    y = kernel.buffer("y", (batch, columns), "float32", write=True)
    return on_vectors(
        kernel,
        isa,
        batch,
        columns,
        y,
        lambda row, start, lanes: a[row, ramp(start, lanes)] + b[row, ramp(start, lanes)],
    )


def scale(name: str, *, isa: Isa, batch: Expr, columns: int) -> Kernel:
    """x (batch, columns), factor (1,) -> x times the factor."""
    kernel = CpuKernelBuilder(name)
    x, factor = kernel.buffer("x", (batch, columns), "float32"), kernel.buffer("factor", (1,), "float32")
    y = kernel.buffer("y", (batch, columns), "float32", write=True)

    def value(row: Scalar, start: Scalar, lanes: int) -> Scalar:
        return x[row, ramp(start, lanes)] * wide(factor[0], lanes)

    return on_vectors(kernel, isa, batch, columns, y, value)


def gate(name: str, *, isa: Isa, batch: Expr, columns: int, activation: str) -> Kernel:
    """gate, up (batch, columns) -> activation(gate) * up."""
    kernel = CpuKernelBuilder(name)
    gates, ups = (kernel.buffer(role, (batch, columns), "float32") for role in ("gate", "up"))
    y = kernel.buffer("y", (batch, columns), "float32", write=True)

    def value(row: Scalar, start: Scalar, lanes: int) -> Scalar:
        return gated(activation, kernel.let("gate", gates[row, ramp(start, lanes)]), ups[row, ramp(start, lanes)])

    return on_vectors(kernel, isa, batch, columns, y, value)


def gate_halves(name: str, *, isa: Isa, batch: Expr, columns: int, activation: str) -> Kernel:
    """x (batch, 2 * columns), gate beside up -> activation(gate) * up."""
    kernel = CpuKernelBuilder(name)
    x = kernel.buffer("x", (batch, 2 * columns), "float32")
    y = kernel.buffer("y", (batch, columns), "float32", write=True)

    def value(row: Scalar, start: Scalar, lanes: int) -> Scalar:
        return gated(activation, kernel.let("gate", x[row, ramp(start, lanes)]), x[row, ramp(start + columns, lanes)])

    return on_vectors(kernel, isa, batch, columns, y, value)


def soft_cap(name: str, *, isa: Isa, batch: Expr, columns: int, scale: float, cap: float | None) -> Kernel:
    """x (batch, columns) -> cap * tanh(scale * x / cap); scale * x without a cap."""
    kernel = CpuKernelBuilder(name)
    x = kernel.buffer("x", (batch, columns), "float32")
    y = kernel.buffer("y", (batch, columns), "float32", write=True)

    def value(row: Scalar, start: Scalar, lanes: int) -> Scalar:
        each = x[row, ramp(start, lanes)]
        scaled = each * like(each, scale)
        return scaled if cap is None else like(scaled, cap) * tanh(scaled / like(scaled, cap))

    return on_vectors(kernel, isa, batch, columns, y, value)


def fake_quantize(
    name: str, *, isa: Isa, batch: Expr, columns: int, scale: float, x_dtype: str, y_dtype: str
) -> Kernel:
    """x (batch, columns) -> rounded to multiples of ``scale``, ties to even, and clipped to -128 to 127 times it."""
    kernel = CpuKernelBuilder(name)
    x = kernel.buffer("x", (batch, columns), x_dtype)
    y = kernel.buffer("y", (batch, columns), y_dtype, write=True)

    def value(row: Scalar, start: Scalar, lanes: int) -> Scalar:
        each = cast(x[row, ramp(start, lanes)], of("float32", lanes))
        return cast(fake_quantized(kernel, each, scale), of(y_dtype, lanes))

    return on_vectors(kernel, isa, batch, columns, y, value)


def slice_columns(
    name: str, *, isa: Isa, batch: Expr, columns: int, start: int, stop: int, x_dtype: str, y_dtype: str
) -> Kernel:
    """x (batch, columns) -> its columns [start, stop)."""
    kernel = CpuKernelBuilder(name)
    x = kernel.buffer("x", (batch, columns), x_dtype)
    y = kernel.buffer("y", (batch, stop - start), y_dtype, write=True)

    def value(row: Scalar, first: Scalar, lanes: int) -> Scalar:
        return cast(x[row, ramp(first + start, lanes)], of(y_dtype, lanes))

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
