"""mark_logits: raise the logits of a green list in the rows that are marked, and copy the other rows.

One thread: one column of one row.
One workgroup: 256 columns.
"""

from __future__ import annotations

from ..ir.sampling import MARK
from ..ir.watermark import COLUMNS
from .builder import Kernel, KernelBuilder, guard_below, number, reinterpret, select
from .green_list import green_list, token_before

THREADS = 256


def mark_logits(name: str, columns: int) -> Kernel:
    kernel = KernelBuilder(name)
    adjusted = kernel.buffer("adjusted", ("A", columns), "float32")
    token_ids = kernel.buffer("token_ids", ("S",), "int32")
    rows = kernel.buffer("rows", ("R",), "int32")
    slots = kernel.buffer("slots", ("R", 2), "int32")
    sampled = kernel.buffer("sampled", ("N",), "int32")
    watermark = kernel.buffer("watermark", (1, COLUMNS), "int32")
    y = kernel.buffer("y", ("A", columns), "float32", write=True)
    block, row = kernel.grid(["ceildiv", columns, THREADS], "A")
    column = kernel.let("column", block * THREADS + kernel.threads(THREADS))
    x = kernel.local("x", 1, "float32")
    with kernel.when(guard_below(column, columns, THREADS)):
        x[0] = adjusted[row, column]
        with kernel.when((slots[row, 1] & MARK) != 0):
            before = token_before(kernel, token_ids, rows, sampled, row)
            listed = green_list(kernel, watermark, before, wraps=True).has(column)
            strength = reinterpret(watermark[0, COLUMNS - 1], "float32")
            x[0] = x[0] + select(listed, strength, number(0, "float32"))
        y[row, column] = x[0]
    return kernel.finish()
