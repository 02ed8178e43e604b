"""The ops of `ir/ops/clips.py`: row_moments and clip_norm, with which an encoder normalizes a clip of sound."""

from __future__ import annotations

from collections.abc import Callable

from .builder import (
    Array,
    Kernel,
    KernelBuilder,
    Scalar,
    cast,
    guard_below,
    maximum,
    minimum,
    number,
    rsqrt,
    select,
    truncated_quotient,
)

THREADS = 64


def row_moments(name: str, *, columns: int, frame: int) -> Kernel:
    """x (S, columns), row_frames (S,) -> (S, 3).

    One workgroup: one row. One thread: every 64th column; then the threads' sums are added up, first those of the
    columns, then those of the squares.
    """
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", ("S", columns), "float32")
    counts = kernel.buffer("row_frames", ("S",), "int32")
    y = kernel.buffer("y", ("S", 3), "float32", write=True)
    row, _ = kernel.grid("S")
    thread = kernel.threads(THREADS)
    counted = kernel.let("counted", minimum(maximum(counts[row], 0) * frame, columns))
    most = kernel.let("most", maximum(cast(counted, "float32"), number(1, "float32")))

    def summed(what: str, term: Callable[[Scalar], Scalar]) -> Scalar:
        """The sum of a term of each column that counts."""
        total = kernel.local(f"total_{what}", 1, "float32", fill=0)
        with kernel.loop("step", -(-columns // THREADS)) as step:
            column = kernel.let("column", step * THREADS + thread)
            with kernel.when(guard_below(column, columns, THREADS)), kernel.when(column < counted):
                total[0] = total[0] + term(kernel.let("each", x[row, column]))
        return kernel.folded(what, thread, THREADS, total[0], lambda one, other: one + other)

    mean = kernel.let("mean", summed("columns", lambda each: each) / most)
    squares = summed("squares", lambda each: (each - mean) * (each - mean))
    with kernel.when(thread < 1):
        for index, value in enumerate((cast(counted, "float32"), mean, squares)):
            y[row, index] = value
    return kernel.finish()


def clip_norm(name: str, *, columns: int, frame: int, eps: float) -> Kernel:
    """x (S, columns), moments (S, 3), positions (S,), weight and bias (frame,) -> like x.

    One workgroup: one row. One thread: the moments of every 64th row, which are added up if they are of this row's
    clip; then every 64th column.
    """
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", ("S", columns), "float32")
    moments = kernel.buffer("moments", ("S", 3), "float32")
    positions = kernel.buffer("positions", ("S",), "int32")
    weight = kernel.buffer("weight", (frame,), "float32")
    bias = kernel.buffer("bias", (frame,), "float32")
    y = kernel.buffer("y", ("S", columns), "float32", write=True)
    row, _ = kernel.grid("S")
    thread = kernel.threads(THREADS)
    rows = kernel.size("S")

    def summed(what: str, term: Callable[[Scalar], Scalar]) -> Scalar:
        """The sum of a term of each row of the clip."""
        total = kernel.local(f"total_{what}", 1, "float32", fill=0)
        with kernel.loop("step", truncated_quotient(rows + (THREADS - 1), THREADS)) as step:
            other = kernel.let("other", step * THREADS + thread)
            with kernel.when(other < rows), kernel.when(same_clip(positions, other, row)):
                total[0] = total[0] + term(other)
        return kernel.folded(what, thread, THREADS, total[0], lambda one, other: one + other)

    counted = kernel.let("counted", maximum(summed("counts", lambda other: moments[other, 0]), number(1, "float32")))
    mean = kernel.let("mean", summed("means", lambda other: moments[other, 0] * moments[other, 1]) / counted)
    squares = summed("squares", lambda other: squares_around(moments, other, mean))
    factor = kernel.let("factor", rsqrt(squares / counted + number(eps, "float32")))
    with kernel.loop("step", -(-columns // THREADS)) as step:
        column = kernel.let("column", step * THREADS + thread)
        with kernel.when(guard_below(column, columns, THREADS)):
            place = kernel.let("place", column - truncated_quotient(column, frame) * frame)
            y[row, column] = (x[row, column] - mean) * factor * weight[place] + bias[place]
    return kernel.finish()


def same_clip(positions: Array, other: Scalar, row: Scalar) -> Scalar:
    """Whether two rows are of one clip: then it begins equally far before their positions."""
    return other - positions[other] == row - positions[row]


def squares_around(moments: Array, row: Scalar, mean: Scalar) -> Scalar:
    """The sum of a row's squared distances from the mean of its clip."""
    away = moments[row, 1] - mean
    return moments[row, 2] + moments[row, 0] * away * away


def of_clip(positions: Array, other: Scalar, row: Scalar, value: Scalar) -> Scalar:
    """The value, or 0 for a row of another clip."""
    return select(same_clip(positions, other, row), value, number(0, "float32"))
