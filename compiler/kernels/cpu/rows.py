"""Operations on rows of float32 vectors: sums over a row, norms, copies of rows."""

from __future__ import annotations

from collections.abc import Callable

from ...ir.expr import Expr
from ..builder import Array, Kernel, KernelBuilder, Scalar, cast, number
from .builder import CpuKernelBuilder, Isa, floats, of, pieces, ramp, wide
from .math import fused, square_root, sum_of_lanes

# The lanes of a vector that sums a row. All instruction-set levels use the same number, so that they add in the same
# order.
LANES = 16


def each_vector(kernel: KernelBuilder, columns: int, lanes: int, body: Callable[[Scalar, int], None]) -> None:
    """Call ``body`` with the start and the lanes of each vector of a row."""
    with kernel.loop("vector", columns // lanes) as vector:
        body(vector * lanes, lanes)
    aligned = columns // lanes * lanes
    for start, rest in pieces(columns - aligned, lanes):
        body(aligned + start, rest)


def rms_factor(kernel: KernelBuilder, load: Callable[[Scalar, int], Scalar], columns: int, eps: float) -> Scalar:
    """1 / rms of a row whose vectors ``load`` returns. Zhang & Sennrich 2019."""
    sums = kernel.local("squares", 1, f"float32x{LANES}", fill=0)
    rest = kernel.local("squares_behind", 1, "float32", fill=0)

    def add(start: Scalar, lanes: int) -> None:
        x = kernel.let("x", load(start, lanes))
        if lanes == LANES:
            sums[0] = fused(x, x, sums[0])
        else:
            rest[0] = rest[0] + sum_of_lanes(x * x)

    each_vector(kernel, columns, LANES, add)
    mean = (sum_of_lanes(sums[0]) + rest[0]) * number(1 / columns, "float32")
    return kernel.let("factor", number(1, "float32") / square_root(mean + number(eps, "float32")))


def row_mean(kernel: KernelBuilder, load: Callable[[Scalar, int], Scalar], columns: int) -> Scalar:
    """The mean of a row whose vectors ``load`` returns."""
    sums = kernel.local("sums", 1, f"float32x{LANES}", fill=0)
    rest = kernel.local("sums_behind", 1, "float32", fill=0)

    def add(start: Scalar, lanes: int) -> None:
        if lanes == LANES:
            sums[0] = sums[0] + load(start, lanes)
        else:
            rest[0] = rest[0] + sum_of_lanes(load(start, lanes))

    each_vector(kernel, columns, LANES, add)
    return kernel.let("mean", (sum_of_lanes(sums[0]) + rest[0]) * number(1 / columns, "float32"))


def norm_row(
    kernel: KernelBuilder,
    x: Array,
    row: Scalar,
    weight: Callable[[Scalar, int], Scalar],
    columns: int,
    eps: float,
    y: Array,
    *,
    centered: bool = False,
    bias: Array | None = None,
    residual: Array | None = None,
    multiplier: Array | None = None,
    copy: Array | None = None,
) -> None:
    """y[row] = x[row] / rms(x[row]) * weight, plus bias and residual[row] if there are any, times multiplier[0] if
    there is one; ``centered``: of x[row] - mean(x[row]). ``copy`` receives the same if it is given.
    """

    def stored(start: Scalar, lanes: int) -> Scalar:
        return cast(x[row, ramp(start, lanes)], floats(lanes))

    mean = row_mean(kernel, stored, columns) if centered else None

    def load(start: Scalar, lanes: int) -> Scalar:
        return stored(start, lanes) if mean is None else stored(start, lanes) - wide(mean, lanes)

    factor = rms_factor(kernel, load, columns, eps)

    def store(start: Scalar, lanes: int) -> None:
        value = load(start, lanes) * wide(factor, lanes) * weight(start, lanes)
        if bias is not None:
            value = value + bias[ramp(start, lanes)]
        if residual is not None:
            value = value + residual[row, ramp(start, lanes)]
        if multiplier is not None:
            value = value * wide(multiplier[0], lanes)
        if copy is not None:
            value = kernel.let("value", value)
            copy[row, ramp(start, lanes)] = value
        y[row, ramp(start, lanes)] = cast(value, of(str(y.buffer.dtype), lanes))

    each_vector(kernel, columns, LANES, store)


def rms_norm(
    name: str,
    *,
    isa: Isa,  # noqa: ARG001
    batch: Expr,
    groups: int,
    columns: int,
    eps: float,
    x_dtype: str,
    y_dtype: str,
    centered: bool = False,
    bias: bool = False,
    residual: bool = False,
    factor: bool = False,
) -> Kernel:
    """x (batch, groups * columns), weight and bias (columns,), residual like x, factor (1,) -> like x, with each group
    of columns normed separately. One task: one group of a row.
    """
    kernel = CpuKernelBuilder(name)
    rows: Expr = batch if groups == 1 else ["mul", batch, groups]
    x = kernel.buffer("x", (rows, columns), x_dtype)
    weight = kernel.buffer("weight", (columns,), "float32")
    shift = kernel.buffer("bias", (columns,), "float32") if bias else None
    addend = kernel.buffer("residual", (rows, columns), "float32") if residual else None
    multiplier = kernel.buffer("factor", (1,), "float32") if factor else None
    y = kernel.buffer("y", (rows, columns), y_dtype, write=True)
    with kernel.tasks("row", rows) as row:
        norm_row(
            kernel,
            x,
            row,
            lambda start, lanes: weight[ramp(start, lanes)],
            columns,
            eps,
            y,
            centered=centered,
            bias=shift,
            residual=addend,
            multiplier=multiplier,
        )
    return kernel.finish()


def take_rows(name: str, *, isa: Isa, rows: Expr, batch: Expr, columns: int) -> Kernel:
    """x (rows, columns), rows (batch,) -> those rows of x. One task: one row."""
    kernel = CpuKernelBuilder(name)
    x = kernel.buffer("x", (rows, columns), "float32")
    indices = kernel.buffer("rows", (batch,), "int32")
    y = kernel.buffer("y", (batch, columns), "float32", write=True)
    with kernel.tasks("row", batch) as row:
        source = kernel.let("source", indices[row])

        def copy(start: Scalar, lanes: int) -> None:
            y[row, ramp(start, lanes)] = x[source, ramp(start, lanes)]

        each_vector(kernel, columns, isa.lanes, copy)
    return kernel.finish()
