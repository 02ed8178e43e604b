"""attention over pages for any batch: the plain kernel. q is what rope_append left in scratch.

One workgroup: one query head of one new token; keys in tiles of 64 with a running softmax (Milakov & Gimelshein 2018), all sums float32.
One thread: first one key of the tile (its score), then one or more vectors of the head's elements (the weighted values).
"""

from __future__ import annotations

import math

from .builder import Kernel, KernelBuilder, cast, exp, maximum, minimum, number, select, splat, sum_lanes
from .pages import LOWEST, Heads, Pages

TILE = 64


def attention(name: str, heads: Heads) -> Kernel:
    lanes, vectors, page_size = heads.lanes, heads.vectors, heads.page_size
    kernel = KernelBuilder(name, scalars=("B",))
    q = kernel.scratch("q", ("S", heads.num_heads, vectors), heads.vector_dtype)
    pages = Pages(kernel, heads, write=False)
    positions = kernel.buffer("positions", ("S",), "int32")
    seq_starts = kernel.buffer("seq_starts", (["add", "B", 1],), "int32")
    page_indptr = kernel.buffer("page_indptr", (["add", "B", 1],), "int32")
    page_ids = kernel.buffer("page_ids", ("L",), "int32")
    y = kernel.buffer("y", ("S", heads.num_heads, vectors), heads.stored_dtype, write=True)

    head, row = kernel.grid(heads.num_heads, "S")
    thread = kernel.threads(TILE)
    kv_head = head // heads.group

    query = kernel.shared("query", (vectors,), heads.vector_dtype)
    scores = kernel.shared("scores", (TILE,), "float32")
    weights = kernel.shared("weights", (TILE,), "float32")
    slots_per_thread = -(-vectors // TILE)
    for i in range(slots_per_thread):
        with kernel.when(thread + i * TILE < vectors):
            query[thread + i * TILE] = q[row, head, thread + i * TILE] * splat(number(1 / math.sqrt(heads.head_dim), "float32"), lanes)

    # The row's sequence is the number of sequences that end at or before it.
    sequence = kernel.local("sequence", 1, "int32", fill=0)
    with kernel.loop("other", kernel.size("B")) as other:
        sequence[0] = sequence[0] + select(seq_starts[other + 1] <= row, 1, 0)
    first_page = kernel.let("first_page", page_indptr[sequence[0]])
    length = kernel.let("length", positions[row] + 1)

    largest = kernel.local("largest", 1, "float32", fill=LOWEST)
    previous = kernel.local("previous", 1, "float32")
    total = kernel.local("total", 1, "float32", fill=0)
    score = kernel.local("score", 1, heads.vector_dtype)
    result = kernel.local("result", slots_per_thread, heads.vector_dtype, fill=0)

    with kernel.loop("tile", (length + TILE - 1) // TILE) as tile:
        key = kernel.let("key", tile * TILE + thread)
        kernel.barrier()
        scores[thread] = LOWEST
        with kernel.when(key < length):
            page = kernel.let("page", page_ids[first_page + key // page_size])
            score[0] = 0
            with kernel.loop("i", vectors) as i:
                score[0] = score[0] + query[i] * pages.load(page, 0, kv_head, key % page_size, i)
            scores[thread] = sum_lanes(score[0], lanes)
        kernel.barrier()
        previous[0] = largest[0]
        with kernel.loop("other_key", TILE) as other_key:
            largest[0] = maximum(largest[0], scores[other_key])
        # A key beyond the end weighs exp(LOWEST - largest), which is 0.
        weights[thread] = exp(scores[thread] - largest[0])
        kernel.barrier()
        correction = kernel.let("correction", exp(previous[0] - largest[0]))
        total[0] = total[0] * correction
        for i in range(slots_per_thread):
            result[i] = result[i] * splat(correction, lanes)
        with kernel.loop("j", minimum(TILE, length - tile * TILE)) as j:
            other_key = tile * TILE + j
            page = kernel.let("page", page_ids[first_page + other_key // page_size])
            total[0] = total[0] + weights[j]
            for i in range(slots_per_thread):
                with kernel.when(thread + i * TILE < vectors):
                    value = pages.load(page, 1, kv_head, other_key % page_size, thread + i * TILE)
                    result[i] = result[i] + splat(weights[j], lanes) * value

    for i in range(slots_per_thread):
        with kernel.when(thread + i * TILE < vectors):
            y[row, head, thread + i * TILE] = cast(result[i] / splat(total[0], lanes), heads.stored_dtype)
    return kernel.finish()
