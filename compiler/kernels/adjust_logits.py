"""adjust_logits: apply penalties, bias and mask to the rows that request them, and copy the other rows.

One thread: one column of one row.
One workgroup: 256 columns.
"""

from __future__ import annotations

from ..ir.sampling import BIAS, COUNTS, IN_PROMPT, MASK, MASKED, Settings
from .builder import Kernel, KernelBuilder, cast, number, select

THREADS = 256


def adjust_logits(name: str, columns: int) -> Kernel:
    setting = {field: index for index, field in enumerate(Settings._fields)}
    kernel = KernelBuilder(name)
    logits = kernel.buffer("logits", ("R", columns), "float32")
    settings = kernel.buffer("settings", ("R", len(setting)), "float32")
    slots = kernel.buffer("slots", ("R", 2), "int32")
    counts = kernel.buffer("counts", ("N", columns), "int32")
    bias = kernel.buffer("bias", ("N", columns), "float32")
    mask = kernel.buffer("mask", ("N", -(-columns // 32)), "int32")
    y = kernel.buffer("y", ("A", columns), "float32", write=True)
    block, row = kernel.grid(["ceildiv", columns, THREADS], "A")
    column = kernel.let("column", block * THREADS + kernel.threads(THREADS))
    slot, flags = kernel.let("slot", slots[row, 0]), kernel.let("flags", slots[row, 1])
    x = kernel.local("x", 1, "float32")
    with kernel.when(True if columns % THREADS == 0 else column < columns):
        x[0] = logits[row, column]
        with kernel.when((flags & COUNTS) != 0):
            count = kernel.let("count", counts[slot, column])
            times = kernel.let("times", count & (IN_PROMPT - 1))
            penalty = settings[row, setting["repetition_penalty"]]
            with kernel.when(count != 0):
                x[0] = select(x[0] > 0, x[0] / penalty, x[0] * penalty)
            x[0] = x[0] - cast(times, "float32") * settings[row, setting["frequency_penalty"]]
            with kernel.when(times > 0):
                x[0] = x[0] - settings[row, setting["presence_penalty"]]
        with kernel.when((flags & BIAS) != 0):
            x[0] = x[0] + bias[slot, column]
        with kernel.when((flags & MASK) != 0), kernel.when(((mask[slot, column // 32] >> (column % 32)) & 1) == 0):
            x[0] = number(float(MASKED), "float32")
        y[row, column] = x[0]
    return kernel.finish()
