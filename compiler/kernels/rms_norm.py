"""rms_norm: rows scaled to unit RMS, each column by its weight, where no projection reads the result.

One workgroup: one row. One thread: every 64th column; then the threads' sums of squares are folded.
"""

from __future__ import annotations

from .builder import Kernel, KernelBuilder, number, rsqrt
from .projection import guard_below

THREADS = 64


def rms_norm(name: str, columns: int, eps: float) -> Kernel:
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", ("R", columns), "float32")
    weight = kernel.buffer("weight", (columns,), "float32")
    y = kernel.buffer("y", ("R", columns), "float32", write=True)
    row, _ = kernel.grid("R")
    thread = kernel.threads(THREADS)
    squares = kernel.shared("squares", (THREADS,), "float32")
    total = kernel.local("total", 1, "float32", fill=0)
    steps = -(-columns // THREADS)
    with kernel.loop("step", steps) as step:
        column = step * THREADS + thread
        with kernel.when(guard_below(column, columns, THREADS)):
            total[0] = total[0] + x[row, column] * x[row, column]
    squares[thread] = total[0]

    def add(mine: object, other: object) -> None:
        squares[mine] = squares[mine] + squares[other]

    kernel.fold(thread, thread, THREADS, add)
    scale = kernel.let("scale", rsqrt(squares[0] / number(columns, "float32") + number(eps, "float32")))
    with kernel.loop("step", steps) as step:
        column = step * THREADS + thread
        with kernel.when(guard_below(column, columns, THREADS)):
            y[row, column] = x[row, column] * scale * weight[column]
    return kernel.finish()
