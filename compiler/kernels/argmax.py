"""argmax: the largest of each row, the first of equals.

One workgroup: one row. One thread: every 256th column, in rising order; then the threads' candidates are folded.
"""

from __future__ import annotations

from .builder import Kernel, KernelBuilder, Scalar, all_of, any_of

THREADS = 256
LOWEST = -3.4028234e38


def argmax(name: str, columns: int) -> Kernel:
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", ("R", columns), "float32")
    y = kernel.buffer("y", ("R",), "int32", write=True)
    row, _ = kernel.grid("R")
    thread = kernel.threads(THREADS)
    values = kernel.shared("values", (THREADS,), "float32")
    places = kernel.shared("places", (THREADS,), "int32")
    best = kernel.local("best", 1, "float32", fill=LOWEST)
    place = kernel.local("place", 1, "int32")
    place[0] = thread
    with kernel.loop("step", -(-columns // THREADS)) as step:
        column = step * THREADS + thread
        with kernel.when(True if columns % THREADS == 0 else column < columns), kernel.when(x[row, column] > best[0]):
            best[0] = x[row, column]
            place[0] = column
    values[thread] = best[0]
    places[thread] = place[0]

    def fold(mine: Scalar, other: Scalar) -> None:
        earlier = all_of(values[other] == values[mine], places[other] < places[mine])
        with kernel.when(any_of(values[other] > values[mine], earlier)):
            values[mine] = values[other]
            places[mine] = places[other]

    kernel.fold(thread, thread, THREADS, fold)
    with kernel.when(thread == 0):
        y[row] = places[0]
    return kernel.finish()
