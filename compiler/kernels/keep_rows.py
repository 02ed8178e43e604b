"""keep_rows: each row, or the row scaled to unit root mean square and by weight, stored in a memory at the row's slot,
if it has one.

One workgroup: one row.
One thread: every 64th column; then the threads' sums of squares are added up.
"""

from __future__ import annotations

from ..ir.pages import KEPT
from .builder import Array, Kernel, KernelBuilder, Scalar, cast, guard_below
from .kept_rows import keep_rows_buffers, kept_count
from .maths import rms_factor

THREADS = 64


def keep_rows(
    name: str, rows: str, columns: int, eps: float | None, by_token: bool, normed: bool, kept_dtype: str
) -> Kernel:
    """``by_token``: the memory has a row for each token of the pages; otherwise one for each slot of a sampled row."""
    count = kept_count(rows, by_token=by_token)
    kernel = KernelBuilder(name, scalars=(KEPT,) if by_token else ())
    x, weight, slot_of, kept = keep_rows_buffers(kernel, rows, columns, kept_dtype, by_token=by_token, normed=normed)
    _, row = kernel.grid(1, count)
    thread = kernel.threads(THREADS)
    slot = kernel.let("slot", slot_of(row))
    scale = None if eps is None else scale_of(kernel, x, row, thread, columns, eps)
    with kernel.when(slot >= 0), kernel.loop("step", -(-columns // THREADS)) as step:
        column = kernel.let("column", step * THREADS + thread)
        with kernel.when(guard_below(column, columns, THREADS)):
            value = x[row, column] if weight is None else x[row, column] * scale * weight[column]
            kept[slot, column] = cast(value, kept_dtype)
    return kernel.finish()


def scale_of(kernel: KernelBuilder, x: Array, row: Scalar, thread: Scalar, columns: int, eps: float) -> Scalar:
    """The factor that scales a row to unit root mean square; all threads add up its squares."""
    squares = kernel.local("squares", 1, "float32", fill=0)
    with kernel.loop("step", -(-columns // THREADS)) as step:
        column = kernel.let("column", step * THREADS + thread)
        with kernel.when(guard_below(column, columns, THREADS)):
            value = kernel.let("each", x[row, column])
            squares[0] = squares[0] + value * value
    total = kernel.folded("total", thread, THREADS, squares[0], lambda one, other: one + other)
    return kernel.let("scale", rms_factor(total, columns, eps))
