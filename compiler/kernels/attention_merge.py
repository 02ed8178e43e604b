"""The last kernel of split attention: combine each head's weighted values of all ranges of keys, as if they were one
range.

One workgroup: 64 vectors of the new tokens of one sequence; none if the sequence has more than ``max_rows`` of them.
One thread: one vector of one query head, of one new token after the other.
"""

from __future__ import annotations

from ..ir.heads import Heads, Scores
from .builder import Kernel, KernelBuilder, cast, maximum
from .decode_range import Ranges
from .scores import LOWEST, first_page_key, last_key, weight
from .vectors import lane_of, splat

THREADS = 64


def attention_merge(
    name: str, *, heads: Heads, window: int | None, causal: bool, sinks: bool, reach: bool, split: int, max_rows: int
) -> Kernel:
    """``split`` and ``max_rows`` as in `Ranges`; the other facts as in `Scores`."""
    lanes, vectors, items = heads.lanes, heads.vectors, heads.num_heads * heads.vectors
    scores, ranges = Scores(1.0, window=window, causal=causal, reach=reach), Ranges(heads, window, split, max_rows)
    kernel = KernelBuilder(name, scalars=("T", heads.sequences))
    partials = ranges.results(kernel)
    positions = kernel.buffer("positions", (heads.rows,), "int32")
    seq_starts = kernel.buffer("seq_starts", (["add", heads.sequences, 1],), "int32")
    scores_of_sinks = kernel.buffer("sinks", (heads.num_heads,), "float32") if sinks else None
    reach_of_rows = kernel.buffer("reach", (heads.rows,), "int32") if reach else None
    y = kernel.buffer("y", (heads.rows, heads.num_heads, vectors), heads.stored_dtype, write=True)

    group_x, sequence = kernel.grid(-(-items // THREADS), heads.sequences)
    item = kernel.let("item", group_x * THREADS + kernel.threads(THREADS))
    largest = kernel.local("largest", 1, "float32")
    total = kernel.local("total", 1, "float32")
    result = kernel.local("result", 1, heads.vector_dtype)
    with kernel.when(True if items % THREADS == 0 else item < items):
        head, index = kernel.let("head", item // vectors), kernel.let("index", item % vectors)
        with ranges.rows(kernel, seq_starts, sequence) as (row, token):
            position = kernel.let("position", positions[row])
            last = None if causal else positions[seq_starts[sequence + 1] - 1]
            last = last if reach_of_rows is None else reach_of_rows[row]
            length = last_key(scores, position, last) + 1 - first_page_key(heads, window, position)
            # Ranges behind the row's last key hold values of an earlier step.
            length = kernel.let("length", length)
            range_keys = ranges.keys(kernel, length)
            count = kernel.let("count", (length + range_keys - 1) // range_keys)
            first = kernel.let("first", (sequence * max_rows + token) * kernel.size(ranges.count))
            # A sink is a key without a value.
            largest[0] = LOWEST if scores_of_sinks is None else scores_of_sinks[head]
            with kernel.loop("part", count) as part:
                largest[0] = maximum(largest[0], lane_of(partials[first + part, head, vectors], 0))
            total[0] = 0 if scores_of_sinks is None else weight(scores_of_sinks[head], largest[0])
            result[0] = 0
            with kernel.loop("part", count) as part:
                kept = kernel.let("kept", partials[first + part, head, vectors])
                factor = kernel.let("factor", weight(lane_of(kept, 0), largest[0]))
                total[0] = total[0] + lane_of(kept, 1) * factor
                result[0] = result[0] + partials[first + part, head, index] * splat(factor, lanes)
            y[row, head, index] = cast(result[0] / splat(total[0], lanes), heads.stored_dtype)
    return kernel.finish()
