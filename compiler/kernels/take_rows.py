"""take_rows: the rows whose logits are wanted. One thread: one column of one row."""

from __future__ import annotations

from .builder import Kernel, KernelBuilder


def take_rows(name: str, columns: int) -> Kernel:
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", ("S", columns), "float32")
    rows = kernel.buffer("rows", ("R",), "int32")
    y = kernel.buffer("y", ("R", columns), "float32", write=True)
    block, row = kernel.grid(["ceildiv", columns, 64], "R")
    column = block * 64 + kernel.threads(64)
    with kernel.when(True if columns % 64 == 0 else column < columns):
        y[row, column] = x[rows[row], column]
    return kernel.finish()
