"""Rows of float32 as vectors: sums over a row, normed rows, rows copied."""

from __future__ import annotations

from collections.abc import Callable

from ..builder import Array, Kernel, KernelBuilder, Scalar, cast, number
from .builder import CpuKernelBuilder, Isa, floats, pieces, ramp, wide
from .math import fused, square_root, sum_of_lanes


def each_vector(kernel: KernelBuilder, columns: int, lanes: int, body: Callable[[Scalar, int], None]) -> None:
    """Call ``body`` with the start and the lanes of the vectors that make up a row."""
    with kernel.loop("vector", columns // lanes) as vector:
        body(vector * lanes, lanes)
    whole = columns // lanes * lanes
    for start, rest in pieces(columns - whole, lanes):
        body(whole + start, rest)


def rms_factor(kernel: KernelBuilder, isa: Isa, load: Callable[[Scalar, int], Scalar], columns: int, eps: float) -> Scalar:
    """1 / rms of a row whose vectors ``load`` gives."""
    sums = kernel.local("squares", 1, f"float32x{isa.lanes}", fill=0)
    rest = kernel.local("squares_behind", 1, "float32", fill=0)

    def add(start: Scalar, lanes: int) -> None:
        x = kernel.let("x", load(start, lanes))
        if lanes == isa.lanes:
            sums[0] = fused(x, x, sums[0])
        else:
            rest[0] = rest[0] + sum_of_lanes(x * x)

    each_vector(kernel, columns, isa.lanes, add)
    mean = (sum_of_lanes(sums[0]) + rest[0]) * number(1 / columns, "float32")
    return kernel.let("factor", number(1, "float32") / square_root(mean + number(eps, "float32")))


def norm_row(kernel: KernelBuilder, isa: Isa, x: Array, row: Scalar, weight: Array, columns: int, eps: float, y: Array) -> None:
    """y[row] = x[row] / rms(x[row]) * weight."""

    def load(start: Scalar, lanes: int) -> Scalar:
        return cast(x[row, ramp(start, lanes)], floats(lanes))

    factor = rms_factor(kernel, isa, load, columns, eps)

    def store(start: Scalar, lanes: int) -> None:
        y[row, ramp(start, lanes)] = load(start, lanes) * wide(factor, lanes) * weight[ramp(start, lanes)]

    each_vector(kernel, columns, isa.lanes, store)


def rms_norm(name: str, isa: Isa, columns: int, eps: float) -> Kernel:
    """rms_norm where no projection reads the result. One task: one row."""
    kernel = CpuKernelBuilder(name)
    x = kernel.buffer("x", ("R", columns), "float32")
    weight = kernel.buffer("weight", (columns,), "float32")
    y = kernel.buffer("y", ("R", columns), "float32", write=True)
    with kernel.tasks("row", "R") as row:
        norm_row(kernel, isa, x, row, weight, columns, eps, y)
    return kernel.finish()


def take_rows(name: str, isa: Isa, columns: int) -> Kernel:
    """The rows whose logits are wanted. One task: one row."""
    kernel = CpuKernelBuilder(name)
    x = kernel.buffer("x", ("S", columns), "float32")
    rows = kernel.buffer("rows", ("R",), "int32")
    y = kernel.buffer("y", ("R", columns), "float32", write=True)
    with kernel.tasks("row", "R") as row:
        source = kernel.let("source", rows[row])

        def copy(start: Scalar, lanes: int) -> None:
            y[row, ramp(start, lanes)] = x[source, ramp(start, lanes)]

        each_vector(kernel, columns, isa.lanes, copy)
    return kernel.finish()
