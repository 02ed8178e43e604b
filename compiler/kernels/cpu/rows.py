"""Operations on rows of float32 vectors: means over a row, and norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ...ir.expr import Expr
from ...ir.ops.parts import Part
from ..builder import Array, Kernel, KernelBuilder, Scalar, cast, number
from ..fold import Fold
from ..tir import tirx
from ..vectors import floats, ramp, splat, sum_of_lanes, with_lanes
from .activations import MATHS
from .builder import CpuKernelBuilder, Isa, each_vector
from .math import fused, square_root

# The lanes of a vector that sums a row. All instruction-set levels use the same number, so that they add in the same
# order.
LANES = 16


def rms_factor(kernel: KernelBuilder, load: Callable[[Scalar, int], Scalar], columns: int, eps: float) -> Scalar:
    """1 / rms of a row whose vectors ``load`` returns. Zhang & Sennrich 2019."""
    mean = row_mean(kernel, load, columns, of_squares=True)
    return kernel.let("factor", number(1, "float32") / square_root(mean + number(eps, "float32")))


def row_mean(
    kernel: KernelBuilder, load: Callable[[Scalar, int], Scalar], columns: int, *, of_squares: bool = False
) -> Scalar:
    """The mean of a row whose vectors ``load`` returns, or of its squares."""
    sums = kernel.local("sums", 1, floats(LANES), fill=0)
    rest = kernel.local("sums_behind", 1, "float32", fill=0)

    def add(start: Scalar, lanes: int) -> None:
        x = kernel.let("x", load(start, lanes))
        if lanes == LANES:
            sums[0] = fused(x, x, sums[0]) if of_squares else sums[0] + x
        else:
            rest[0] = rest[0] + sum_of_lanes(x * x if of_squares else x)

    each_vector(kernel, columns, LANES, add)
    return kernel.let("mean", (sum_of_lanes(sums[0]) + rest[0]) * number(1 / columns, "float32"))


def norm_row(
    kernel: KernelBuilder,
    x: Array,
    row: Scalar,
    weight: Callable[[Scalar, int], Scalar],
    columns: int,
    norm: Part,
    y: Array,
    *,
    bias: Array | None = None,
    fold: Fold | None = None,
    copy: Array | None = None,
) -> None:
    """y[row] = x[row] / rms(x[row]) * weight, plus bias if there is one, then the parts of ``fold``; for a centered
    ``norm`` of x[row] - mean(x[row]). ``copy`` receives the same if it is given.
    """

    def stored(start: Scalar, lanes: int) -> Scalar:
        return cast(x[row, ramp(start, lanes)], floats(lanes))

    mean = row_mean(kernel, stored, columns) if norm["centered"] else None

    def load(start: Scalar, lanes: int) -> Scalar:
        return stored(start, lanes) if mean is None else stored(start, lanes) - splat(mean, lanes)

    factor = rms_factor(kernel, load, columns, norm["eps"])

    def store(start: Scalar, lanes: int) -> None:
        value = load(start, lanes) * splat(factor, lanes) * weight(start, lanes)
        if bias is not None:
            value = value + bias[ramp(start, lanes)]
        if fold is not None:
            value = fold(row, start, value)
        if copy is not None:
            value = kernel.let("value", value)
            copy[row, ramp(start, lanes)] = value
        y[row, ramp(start, lanes)] = cast(value, with_lanes(str(y.buffer.dtype), lanes))

    each_vector(kernel, columns, LANES, store)


def rms_norm(
    name: str,
    *,
    isa: Isa,  # noqa: ARG001
    rows: Expr,
    columns: int,
    group: int,
    x_dtype: str,
    y_dtype: str,
    norm: Part,
    then: Sequence[Part] = (),
    y_in_scratch: bool = False,
) -> Kernel:
    """x (rows, columns), weight and bias (group,) -> like x, with each group of columns normed separately, then the
    parts of ``then``. ``y_in_scratch``: y is the scratch buffer "normed". One task: one group of a row.
    """
    kernel = CpuKernelBuilder(name)
    rows, groups = rows if group == columns else ["mul", rows, columns // group], norm["groups"]
    first = (norm["row"] or 0) * columns
    x = kernel.buffer("x", (rows, group), x_dtype)
    weight = kernel.buffer("weight", (first + groups * group,), "float32")
    bias = kernel.buffer("bias", (group,), "float32") if norm["bias"] else None
    fold = Fold(kernel, MATHS, then, rows, group)
    declare = partial(kernel.scratch, "normed") if y_in_scratch else partial(kernel.buffer, "y")
    y = declare((rows, group), y_dtype, write=True)
    with kernel.tasks("row", rows) as row:
        # Groups may have weights of their own.
        own = first if groups == 1 else kernel.let("own", tirx.truncmod(row, groups) * group)
        weights = lambda start, lanes: weight[ramp(own + start, lanes)]  # noqa: E731
        norm_row(kernel, x, row, weights, group, norm, y, bias=bias, fold=fold)
    return kernel.finish()
