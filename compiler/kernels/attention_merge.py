"""The end of a split attention_decode: each head's weighted values of all ranges of keys, scaled to the largest score of all, over the sum
of all weights.

One thread: one vector of one query head of one sequence. Needs: S == B.
"""

from __future__ import annotations

from .attention_decode import splits
from .builder import Kernel, KernelBuilder, cast, exp, lane_of, maximum, splat
from .pages import LOWEST, Heads

THREADS = 64


def attention_merge(name: str, facts: Heads, split: int) -> Kernel:
    lanes, vectors, items = facts.lanes, facts.vectors, facts.num_heads * facts.vectors
    kernel = KernelBuilder(name, scalars=("T",))
    partials = kernel.scratch("partials", ("S", splits(split), facts.num_heads, vectors + 1), facts.vector_dtype)
    positions = kernel.buffer("positions", ("S",), "int32")
    y = kernel.buffer("y", ("S", facts.num_heads, vectors), facts.stored_dtype, write=True)

    group_x, row = kernel.grid(["ceildiv", items, THREADS], "S")
    item = kernel.let("item", group_x * THREADS + kernel.threads(THREADS))
    largest = kernel.local("largest", 1, "float32", fill=LOWEST)
    total = kernel.local("total", 1, "float32", fill=0)
    result = kernel.local("result", 1, facts.vector_dtype, fill=0)
    with kernel.when(item < items):
        head, index = kernel.let("head", item // vectors), kernel.let("index", item % vectors)
        # Ranges beyond this sequence's own length hold what an earlier step left there.
        ranges = kernel.let("ranges", (positions[row] + split) // split)
        with kernel.loop("part", ranges) as part:
            largest[0] = maximum(largest[0], lane_of(partials[row, part, head, vectors], 0))
        with kernel.loop("part", ranges) as part:
            kept = kernel.let("kept", partials[row, part, head, vectors])
            scale = kernel.let("scale", exp(lane_of(kept, 0) - largest[0]))
            total[0] = total[0] + lane_of(kept, 1) * scale
            result[0] = result[0] + partials[row, part, head, index] * splat(scale, lanes)
        y[row, head, index] = cast(result[0] / splat(total[0], lanes), facts.stored_dtype)
    return kernel.finish()
