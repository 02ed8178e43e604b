"""attention over pages, prefill and decode alike.

One workgroup: one query head of one new token; keys in tiles of 64 with a running softmax (Milakov & Gimelshein 2018), all sums float32.
One thread: first one key of the tile (its score), then one or more vectors of the head's elements (the weighted values).
"""

from __future__ import annotations

import math

from .builder import Kernel, KernelBuilder, cast, exp, maximum, minimum, number, select, splat, sum_lanes

TILE = 64
# Stands for minus infinity, which WGSL may not be asked to compute with.
LOWEST = -3.0e38


def attention(name: str, num_heads: int, num_kv_heads: int, head_dim: int, page_size: int, activation: str) -> Kernel:
    lanes = 4 if head_dim % 4 == 0 else 2
    vectors = head_dim // lanes
    vector_dtype, stored_dtype = f"float32x{lanes}", f"{activation}x{lanes}"
    kernel = KernelBuilder(name, scalars=("B",))
    q = kernel.buffer("q", ("S", num_heads, vectors), stored_dtype)
    kv = kernel.buffer("kv", ("P", 2, num_kv_heads, page_size, vectors), stored_dtype)
    positions = kernel.buffer("positions", ("S",), "int32")
    seq_starts = kernel.buffer("seq_starts", (["add", "B", 1],), "int32")
    page_indptr = kernel.buffer("page_indptr", (["add", "B", 1],), "int32")
    page_ids = kernel.buffer("page_ids", ("L",), "int32")
    y = kernel.buffer("y", ("S", num_heads, vectors), stored_dtype, write=True)

    head, row = kernel.grid(num_heads, "S")
    thread = kernel.threads(TILE)
    kv_head = head // (num_heads // num_kv_heads)

    query = kernel.shared("query", (vectors,), vector_dtype)
    scores = kernel.shared("scores", (TILE,), "float32")
    weights = kernel.shared("weights", (TILE,), "float32")
    slots_per_thread = -(-vectors // TILE)
    for i in range(slots_per_thread):
        with kernel.when(thread + i * TILE < vectors):
            query[thread + i * TILE] = cast(q[row, head, thread + i * TILE], vector_dtype) * splat(
                number(1 / math.sqrt(head_dim), "float32"), lanes
            )

    # The row's sequence is the number of sequences that end at or before it.
    sequence = kernel.local("sequence", 1, "int32", fill=0)
    with kernel.loop("other", kernel.size("B")) as other:
        sequence[0] = sequence[0] + select(seq_starts[other + 1] <= row, 1, 0)
    first_page = kernel.let("first_page", page_indptr[sequence[0]])
    length = kernel.let("length", positions[row] + 1)

    largest = kernel.local("largest", 1, "float32", fill=LOWEST)
    previous = kernel.local("previous", 1, "float32")
    total = kernel.local("total", 1, "float32", fill=0)
    score = kernel.local("score", 1, vector_dtype)
    result = kernel.local("result", slots_per_thread, vector_dtype, fill=0)

    with kernel.loop("tile", (length + TILE - 1) // TILE) as tile:
        key = kernel.let("key", tile * TILE + thread)
        kernel.barrier()
        scores[thread] = LOWEST
        with kernel.when(key < length):
            page = kernel.let("page", page_ids[first_page + key // page_size])
            score[0] = 0
            with kernel.loop("i", vectors) as i:
                score[0] = score[0] + query[i] * cast(kv[page, 0, kv_head, key % page_size, i], vector_dtype)
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
                    value = cast(kv[page, 1, kv_head, other_key % page_size, thread + i * TILE], vector_dtype)
                    result[i] = result[i] + splat(weights[j], lanes) * value

    for i in range(slots_per_thread):
        with kernel.when(thread + i * TILE < vectors):
            y[row, head, thread + i * TILE] = cast(result[i] / splat(total[0], lanes), stored_dtype)
    return kernel.finish()
