"""gate_halves: silu(gate) * up of rows that hold gate beside up. One thread: one column of one row."""

from __future__ import annotations

from .builder import Kernel, KernelBuilder, exp, number

THREADS = 128


def gate_halves(name: str, columns: int) -> Kernel:
    """``columns`` are those of the result."""
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", ("S", 2 * columns), "float32")
    y = kernel.buffer("y", ("S", columns), "float32", write=True)
    block, row = kernel.grid(["ceildiv", columns, THREADS], "S")
    column = kernel.let("column", block * THREADS + kernel.threads(THREADS))
    with kernel.when(column < columns):
        gate = kernel.let("gate", x[row, column])
        y[row, column] = gate / (number(1, "float32") + exp(-gate)) * x[row, columns + column]
    return kernel.finish()
