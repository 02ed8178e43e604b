"""The second kernel of a split attention_decode: combine each head's weighted values of all ranges of keys, as if they
were one range.

One thread: one vector of one query head of one sequence.
Needs: S == B.
"""

from __future__ import annotations

from .builder import Kernel, KernelBuilder, cast, lane_of, maximum, splat
from .decode_range import splits
from .heads import Heads
from .scores import LOWEST, first_page_key, weight

THREADS = 64


def attention_merge(name: str, *, heads: Heads, window: int | None, split: int) -> Kernel:
    lanes, vectors, items = heads.lanes, heads.vectors, heads.num_heads * heads.vectors
    kernel = KernelBuilder(name, scalars=("T",))
    partials = kernel.scratch(
        "partials", ("S", splits(heads, window, split), heads.num_heads, vectors + 1), heads.vector_dtype
    )
    positions = kernel.buffer("positions", ("S",), "int32")
    y = kernel.buffer("y", ("S", heads.num_heads, vectors), heads.stored_dtype, write=True)

    group_x, row = kernel.grid(["ceildiv", items, THREADS], "S")
    item = kernel.let("item", group_x * THREADS + kernel.threads(THREADS))
    largest = kernel.local("largest", 1, "float32", fill=LOWEST)
    total = kernel.local("total", 1, "float32", fill=0)
    result = kernel.local("result", 1, heads.vector_dtype, fill=0)
    with kernel.when(item < items):
        head, index = kernel.let("head", item // vectors), kernel.let("index", item % vectors)
        # Ranges beyond the end of this sequence hold values of an earlier step.
        ranges = kernel.let("ranges", (positions[row] - first_page_key(heads, window, positions[row]) + split) // split)
        with kernel.loop("part", ranges) as part:
            largest[0] = maximum(largest[0], lane_of(partials[row, part, head, vectors], 0))
        with kernel.loop("part", ranges) as part:
            kept = kernel.let("kept", partials[row, part, head, vectors])
            factor = kernel.let("factor", weight(lane_of(kept, 0), largest[0]))
            total[0] = total[0] + lane_of(kept, 1) * factor
            result[0] = result[0] + partials[row, part, head, index] * splat(factor, lanes)
        y[row, head, index] = cast(result[0] / splat(total[0], lanes), heads.stored_dtype)
    return kernel.finish()
