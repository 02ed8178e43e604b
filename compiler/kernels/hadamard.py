"""The rotation of heads in workgroup memory, as `ops.kv_pages.rotated` defines it: fast Walsh-Hadamard transforms."""

from __future__ import annotations

from ..ir.heads import Heads
from ..ir.kv_format import hadamard_size
from .builder import Array, KernelBuilder, Scalar, number
from .vectors import lane_of, vector


def rotate_rows(kernel: KernelBuilder, heads: Heads, rows: Array, count: int, thread: Scalar, threads: int) -> None:
    """Rotate the first ``count`` of ``rows`` (.., vectors) in place, with all ``threads`` of the workgroup, which have
    passed a barrier since the rows were written. Ends with a barrier.
    """
    assert heads.lanes == 4, heads
    size, pairs, step = hadamard_size(heads.head_dim), heads.vectors // 2, 1
    while step * 4 < size:
        # A thread has pairs of vectors, ``step`` apart.
        for start in range(0, count * pairs, threads):
            item = kernel.let("item", thread + start)
            with kernel.when(True if start + threads <= count * pairs else item < count * pairs):
                row, pair = kernel.let("row", item // pairs), kernel.let("pair", item % pairs)
                first = kernel.let("first", pair // step * (2 * step) + pair % step)
                vectors = [rows[row, first], rows[row, first + step]]
                if step == 1:
                    vectors = [rotated_lanes(kernel.let("vector", each), size**-0.5) for each in vectors]
                low, high = (kernel.let("rotated", each) for each in vectors)
                rows[row, first], rows[row, first + step] = low + high, low - high
        kernel.barrier()
        step *= 2


def rotated_lanes(value: Scalar, factor: float) -> Scalar:
    """The first two steps, which combine the lanes of a vector, times a factor."""
    a, b, c, d = (lane_of(value, lane) for lane in range(4))
    lanes = (a + b) + (c + d), (a - b) + (c - d), (a + b) - (c + d), (a - b) - (c - d)
    return vector(*lanes) * number(factor, "float32x4")
