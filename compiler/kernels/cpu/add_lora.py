"""add_lora: the change that each row's adapter makes to a projection's result."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ...ir.ops.parts import Part
from ..builder import Kernel, Scalar, cast, number
from ..vectors import floats, ramp, sum_of_lanes
from .builder import CpuKernelBuilder, Isa, each_vector
from .math import fused
from .rows import LANES, rms_factor

# Columns of the result per task.
COLUMNS = 128


def add_lora(
    name: str,
    *,
    isa: Isa,  # noqa: ARG001
    columns: int,
    widths: Sequence[int],
    rank: int,
    x_dtype: str,
    y_dtype: str,
    load: Sequence[Part],
) -> Kernel:
    """``widths`` as in `ops.add_lora`; ``load`` is an RMS norm, or nothing.

    First tasks: the products of one row with one row of A each. Then: COLUMNS columns of one row each.
    """
    outputs, ranks = sum(widths), rank * len(widths)
    kernel = CpuKernelBuilder(name)
    x = kernel.buffer("x", ("S", columns), x_dtype)
    norm = kernel.buffer("load0_weight", (columns,), "float32") if load else None
    adapters = kernel.buffer("adapters", ("S",), "int32")
    a = kernel.buffer("a", ("M", ranks, columns), "float32")
    b = kernel.buffer("b", ("M", outputs, rank), "float32")
    y = kernel.buffer("y", ("S", outputs), y_dtype, write=True)
    lows = kernel.scratch("lows", ("G", ranks), "float32", write=True)

    def read(row: Scalar, start: Scalar, lanes: int) -> Scalar:
        return cast(x[row, ramp(start, lanes)], floats(lanes))

    with kernel.tasks("row", "G") as row:
        slot = kernel.let("slot", adapters[row])
        with kernel.when(slot >= 0):
            factor = number(1, "float32")
            if load:
                factor = rms_factor(kernel, lambda start, lanes: read(row, start, lanes), columns, load[0]["eps"])
            with kernel.loop("r", ranks) as r:
                sums = kernel.local("sums", 1, floats(LANES), fill=0)
                rest = kernel.local("rest", 1, "float32", fill=0)

                def add(start: Scalar, lanes: int) -> None:
                    weight = a[slot, r, ramp(start, lanes)]
                    if norm is not None:
                        weight = weight * norm[ramp(start, lanes)]
                    if lanes == LANES:
                        sums[0] = fused(read(row, start, lanes), weight, sums[0])
                    else:
                        rest[0] = rest[0] + sum_of_lanes(read(row, start, lanes) * weight)

                each_vector(kernel, columns, LANES, add)
                lows[row, r] = (sum_of_lanes(sums[0]) + rest[0]) * factor

    stops = list(accumulate(widths))
    with kernel.tasks("block", "G", -(-outputs // COLUMNS)) as block:
        row, first = kernel.split(block, -(-outputs // COLUMNS), ("row", "first"))
        slot = kernel.let("slot", adapters[row])
        with kernel.when(slot >= 0), kernel.loop("i", COLUMNS) as i:
            column = kernel.let("column", first * COLUMNS + i)
            for part, stop in enumerate(stops):
                with kernel.when(column < stop), kernel.when(True if part == 0 else column >= stops[part - 1]):
                    total = kernel.local("total", 1, "float32", fill=0)
                    with kernel.loop("r", rank) as r:
                        total[0] = fused(lows[row, part * rank + r], b[slot, column, r], total[0])
                    y[row, column] = cast(cast(y[row, column], "float32") + total[0], y_dtype)
    return kernel.finish()
