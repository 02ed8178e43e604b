"""causal_conv: each channel's weighted sum of its last inputs, of which a state holds those before the new rows.

One workgroup: 64 channels of a tile of a sequence's new rows.
One thread: one channel; it keeps the last inputs in registers. The thread of a sequence's first tile, which alone reads
the old state, also writes the new one, whose inputs are rows of the batch if there are enough of them.
"""

from __future__ import annotations

from functools import partial

from ..ir.expr import Expr
from .batch_rows import Tiling
from .builder import Kernel, KernelBuilder, Scalar, guard_below, minimum
from .maths import ACTIVATION_FUNCTIONS

THREADS = 64
# The scratch buffer of a result that a kernel of the same step reads.
CONVOLVED = "convolved"
# A tile is no shorter than the longest state, so only the first tile of a sequence reads it.
TILE = 16


def causal_conv(
    name: str,
    *,
    rows: Expr,
    columns: int,
    taps: int,
    bias: bool,
    activation: str,
    stride: int,
    start: int,
    gated: bool,
    y_in_scratch: bool = False,
) -> Kernel:
    """x is columns of rows of ``stride``, from ``start`` on. ``y_in_scratch``: y is the scratch buffer `CONVOLVED`."""
    tile_rows = max(TILE, taps - 1)
    kernel, tiling = KernelBuilder(name), Tiling(tile_rows, few=0)
    x = kernel.buffer("x", (rows, stride), "float32")
    weight = kernel.buffer("weight", (columns * taps,), "float32")
    biases = kernel.buffer("bias", (columns,), "float32") if bias else None
    state = kernel.buffer("state", ("Z", taps - 1, columns), "float32", write=True)
    slots = kernel.buffer("state_slots", ("B", 2), "int32")
    seq_starts = kernel.buffer("seq_starts", (["add", "B", 1],), "int32")
    positions = kernel.buffer("positions", (rows,), "int32")
    declare = partial(kernel.scratch, CONVOLVED) if y_in_scratch else partial(kernel.buffer, "y")
    y = declare((rows, columns), "float32", write=True)
    block, slot = kernel.grid(-(-columns // THREADS), tiling.slots)
    column = kernel.let("column", block * THREADS + kernel.threads(THREADS))

    sequence = tiling.sequence_of(kernel, slot, seq_starts)
    begin, end = (kernel.let("bound", seq_starts[sequence + behind]) for behind in range(2))
    first = kernel.let("first", begin + (slot - tiling.start(sequence, begin)) * tile_rows)

    def part(row: Scalar, index: int) -> Scalar:
        return x[row, start + index * columns + column]

    def own(row: Scalar) -> Scalar:
        return part(row, 0) * part(row, 2) if gated else part(row, 0)

    with kernel.when(guard_below(column, columns, THREADS)), kernel.when(first < end):
        read, write = (kernel.let("state_slot", slots[sequence, which]) for which in range(2))
        known = kernel.local("known", taps - 1, "float32", fill=0)
        with kernel.when(first > begin):
            for back in range(taps - 1):
                known[back] = own(first - (taps - 1) + back)
        with kernel.when(first == begin), kernel.when(positions[begin] > 0):
            for back in range(taps - 1):
                known[back] = state[read, back, column]
        factors = kernel.local("factors", taps, "float32")
        for tap in range(taps):
            factors[tap] = weight[column * taps + tap]
        with kernel.loop("step", minimum(end - first, tile_rows)) as step:
            row = kernel.let("row", first + step)
            newest = kernel.let("newest", own(row))
            total: Scalar = newest * factors[taps - 1]
            for back in range(taps - 1):
                total = total + known[back] * factors[back]
            total = kernel.let("total", total if biases is None else total + biases[column])
            result = ACTIVATION_FUNCTIONS[activation](total)
            y[row, column] = result * part(row, 1) if gated else result
            for back in range(taps - 2):
                known[back] = known[back + 1]
            known[taps - 2] = newest
        with kernel.when(first == begin):
            with kernel.when(end - begin > tile_rows):
                for back in range(taps - 1):
                    known[back] = own(end - (taps - 1) + back)
            for back in range(taps - 1):
                state[write, back, column] = known[back]
    return kernel.finish()
