"""pool_rows: one row of those of each text.

One workgroup: 64 columns of one text.
One thread: one column.
"""

from __future__ import annotations

from collections.abc import Callable

from .builder import Kernel, KernelBuilder, Scalar, cast, maximum, number, rsqrt

THREADS = 64


def pool_rows(name: str, *, columns: int, mode: str) -> Kernel:
    """``mode`` is one of `ops.encoders.POOLINGS`."""
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", ("S", columns), "float32")
    seq_starts = kernel.buffer("seq_starts", (["add", "B", 1],), "int32")
    y = kernel.buffer("y", ("B", columns), "float32", write=True)

    def pool(text: Scalar, column: Scalar, lanes: int) -> None:  # noqa: ARG001
        start, stop = (kernel.let("bound", seq_starts[text + behind]) for behind in range(2))
        y[text, column] = pooled(kernel, mode, lambda row: x[row, column], start, stop)

    kernel.each("B", columns, pool, THREADS)
    return kernel.finish()


def pooled(kernel: KernelBuilder, mode: str, load: Callable[[Scalar], Scalar], start: Scalar, stop: Scalar) -> Scalar:
    """The pooled value of rows [start, stop)."""
    if mode in ("cls", "last_token"):
        return load(start if mode == "cls" else stop - 1)
    total = kernel.local("total", 1, "float32")
    total[0] = load(start)
    with kernel.loop("other", stop - start - 1) as other:
        each = load(start + 1 + other)
        total[0] = maximum(total[0], each) if mode == "max" else total[0] + each
    if mode == "max":
        return total[0]
    length = cast(stop - start, "float32")
    return total[0] * (number(1, "float32") / length if mode == "mean" else rsqrt(length))
