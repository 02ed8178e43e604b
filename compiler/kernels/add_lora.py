"""add_lora: add the change of a row's LoRA adapter to a projection's columns.

One workgroup: one row, 512 columns. Its threads first compute the row's products with all rows of A, in groups of 32
lanes along the columns of x. Then each thread computes its columns of the result. A row without an adapter is computed
with the first adapter but not stored, so that barriers stay out of branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ..ir.ops.parts import Part
from .builder import Kernel, KernelBuilder, cast, maximum, select
from .maths import rms_factor

THREADS = 128
LANES = 32
COLUMNS = 512
# Rows of A whose partial sums are in shared memory at once.
RANKS_AT_ONCE = 32


def add_lora(
    name: str, columns: int, widths: Sequence[int], rank: int, x_dtype: str, y_dtype: str, load: Sequence[Part]
) -> Kernel:
    """``widths`` as in `ops.add_lora`; ``load`` is an RMS norm, or nothing."""
    outputs, ranks = sum(widths), rank * len(widths)
    kernel = KernelBuilder(name, scalars=("G",))
    x = kernel.buffer("x", ("S", columns), x_dtype)
    norm = kernel.buffer("load0_weight", (columns,), "float32") if load else None
    adapters = kernel.buffer("adapters", ("S",), "int32")
    a = kernel.buffer("a", ("M", ranks, columns), "float32")
    b = kernel.buffer("b", ("M", outputs, rank), "float32")
    y = kernel.buffer("y", ("S", outputs), y_dtype, write=True)
    block, row = kernel.grid(["ceildiv", outputs, COLUMNS], "G")
    thread = kernel.threads(THREADS)
    lane, group = kernel.let("lane", thread % LANES), kernel.let("group", thread // LANES)
    adapter = kernel.let("adapter", adapters[row])
    slot = kernel.let("slot", maximum(adapter, 0))
    partial = kernel.shared("partial", (RANKS_AT_ONCE, LANES), "float32")
    lows = kernel.shared("lows", (ranks,), "float32")
    total = kernel.local("total", 1, "float32")
    scale = kernel.local("scale", 1, "float32", fill=1)
    steps = -(-columns // LANES)

    if load:
        total[0] = 0
        with kernel.loop("step", -(-columns // THREADS)) as step:
            column = kernel.let("column", step * THREADS + thread)
            with kernel.when(column < columns):
                each = kernel.let("each", cast(x[row, column], "float32"))
                total[0] = total[0] + each * each
        squares = kernel.folded("squares", thread, THREADS, total[0], lambda one, other: one + other)
        scale[0] = rms_factor(squares, columns, load[0]["eps"])

    for first in range(0, ranks, RANKS_AT_ONCE):
        count = min(RANKS_AT_ONCE, ranks - first)
        with kernel.loop("turn", -(-count // (THREADS // LANES))) as turn:
            r = kernel.let("r", turn * (THREADS // LANES) + group)
            with kernel.when(r < count):
                total[0] = 0
                with kernel.loop("step", steps) as step:
                    column = kernel.let("column", step * LANES + lane)
                    with kernel.when(column < columns):
                        weight = (
                            a[slot, first + r, column] if norm is None else a[slot, first + r, column] * norm[column]
                        )
                        total[0] = total[0] + cast(x[row, column], "float32") * weight
                partial[r, lane] = total[0]
        kernel.barrier()
        with kernel.when(thread < count):
            total[0] = 0
            with kernel.loop("i", LANES) as i:
                total[0] = total[0] + partial[thread, i]
            lows[first + thread] = total[0] * scale[0]
        kernel.barrier()

    stops = list(accumulate(widths))
    with kernel.loop("turn", COLUMNS // THREADS) as turn:
        column = kernel.let("column", block * COLUMNS + turn * THREADS + thread)
        with kernel.when(column < outputs), kernel.when(adapter >= 0):
            part = kernel.local("part", 1, "int32", fill=0)
            for stop in stops[:-1]:
                part[0] = part[0] + select(column >= stop, 1, 0)
            total[0] = cast(y[row, column], "float32")
            with kernel.loop("r", rank) as r:
                total[0] = total[0] + lows[part[0] * rank + r] * b[slot, column, r]
            y[row, column] = cast(total[0], y_dtype)
    return kernel.finish()
