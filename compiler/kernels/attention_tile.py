"""attention over pages for many new tokens of a sequence: prefill. q is what rope_append left in scratch.

One workgroup: one query head of ``rows`` new tokens, keys in tiles up to the last of those tokens, with a running softmax (Milakov &
Gimelshein 2018), all sums float32. Where the rows are of several sequences, it takes these one after the other; to each, the others' rows
are masked. One thread: a few scores of a tile, for rows and keys each a stride apart; then one vector of every so-manyeth row's result.
Needs: positions of a sequence in ascending order; ``keys`` a multiple of the page, or a part of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .builder import Kernel, KernelBuilder, Scalar, all_of, cast, exp, maximum, minimum, number, select, splat, sum_lanes
from .pages import LOWEST, Heads, Pages

# Vectors of each key in workgroup memory at a time.
KEY_VECTORS = 8


@dataclass(frozen=True, slots=True)
class TileOptions:
    rows: int
    keys: int = 32
    threads: int = 128

    def shared_bytes(self, facts: Heads) -> int:
        """Workgroup memory: queries, a part of the keys, scores, a fold, and what is kept of each row."""
        vectors = self.rows * padded_vectors(facts) + self.keys * (KEY_VECTORS + 1)
        return 4 * (vectors * facts.lanes + self.rows * (self.keys + 1) + self.threads + 3 * self.rows + self.keys)


def padded_vectors(facts: Heads) -> int:
    """Vectors of a query in workgroup memory, zeros behind the last."""
    return -(-facts.vectors // KEY_VECTORS) * KEY_VECTORS


def attention_tile(name: str, facts: Heads, options: TileOptions) -> Kernel:
    rows, keys, threads = options.rows, options.keys, options.threads
    lanes, vectors, page_size = facts.lanes, facts.vectors, facts.page_size
    assert keys % page_size == 0 or page_size % keys == 0, (keys, page_size)
    assert threads % rows == 0, options
    assert vectors <= threads, (vectors, threads)

    kernel = KernelBuilder(name, scalars=("B",))
    q = kernel.scratch("q", ("S", facts.num_heads, vectors), facts.vector_dtype)
    pages = Pages(kernel, facts, write=False)
    positions = kernel.buffer("positions", ("S",), "int32")
    seq_starts = kernel.buffer("seq_starts", (["add", "B", 1],), "int32")
    page_indptr = kernel.buffer("page_indptr", (["add", "B", 1],), "int32")
    page_ids = kernel.buffer("page_ids", ("L",), "int32")
    y = kernel.buffer("y", ("S", facts.num_heads, vectors), facts.stored_dtype, write=True)

    head, group_y = kernel.grid(facts.num_heads, ["ceildiv", "S", rows])
    thread = kernel.threads(threads)
    kv_head = head // facts.group
    first_row = kernel.let("first_row", group_y * rows)
    end_row = kernel.let("end_row", minimum(first_row + rows, kernel.size("S")))

    queries = kernel.shared("queries", (rows, padded_vectors(facts)), facts.vector_dtype)
    key_part = kernel.shared("key_part", (keys, KEY_VECTORS + 1), facts.vector_dtype)
    scores = kernel.shared("scores", (rows, keys + 1), "float32")
    fold_places = kernel.shared("fold_places", (threads,), "float32")
    largest, total, correction = (kernel.shared(each, (rows,), "float32") for each in ("largest", "total", "correction"))
    tile_pages = kernel.shared("tile_pages", (max(1, keys // page_size),), "int32")

    scale = splat(number(1 / math.sqrt(facts.head_dim), "float32"), lanes)
    zero = number(0, facts.vector_dtype)
    for start in range(0, rows * padded_vectors(facts), threads):
        item = kernel.let("item", thread + start)
        with kernel.when(True if start + threads <= rows * padded_vectors(facts) else item < rows * padded_vectors(facts)):
            row, index = kernel.let("row", item // padded_vectors(facts)), kernel.let("index", item % padded_vectors(facts))
            queries[row, index] = zero
            with kernel.when(all_of(first_row + row < end_row, index < vectors)):
                queries[row, index] = q[first_row + row, head, index] * scale
    with kernel.when(thread < rows):
        largest[thread] = LOWEST
        total[thread] = 0

    # A thread's scores: rows score_row + i * row_groups and keys score_key + j * key_groups.
    key_groups = min(keys, max(1, threads // 8))
    row_groups = threads // key_groups
    score_row, score_key = kernel.let("score_row", thread // key_groups), kernel.let("score_key", thread % key_groups)
    score_rows, score_keys = -(-rows // row_groups), keys // key_groups
    dots = kernel.local("dots", score_rows * score_keys, facts.vector_dtype, fill=0)
    # A thread's part of a row's softmax.
    threads_a_row = threads // rows
    soft_row, lane = kernel.let("soft_row", thread // threads_a_row), kernel.let("lane", thread % threads_a_row)
    best, sum_ = kernel.local("best", 1, "float32"), kernel.local("sum", 1, "float32")
    # A thread's part of the result: one vector of rows value_row + i * value_groups.
    value_groups = threads // vectors
    value_row, index = kernel.let("value_row", thread // vectors), kernel.let("index", thread % vectors)
    has_values = True if value_groups * vectors == threads else value_row < value_groups
    value_rows = -(-rows // value_groups)
    result = kernel.local("result", value_rows, facts.vector_dtype, fill=0)

    def row_of(i: int) -> Scalar:
        """Row i of the thread's part of the result; beyond the last row, the last."""
        return value_row + i * value_groups if value_groups * value_rows == rows else minimum(value_row + i * value_groups, rows - 1)

    def fold(combine: object) -> None:
        def into(mine: Scalar, other: Scalar) -> None:
            fold_places[mine] = combine(fold_places[mine], fold_places[other])  # type: ignore[operator]

        kernel.fold(thread, lane, threads_a_row, into)

    # The sequences of the tile's rows: those that end behind its first row and start before its end.
    first_sequence, end_sequence = (kernel.local(each, 1, "int32", fill=0) for each in ("first_sequence", "end_sequence"))
    with kernel.loop("other", kernel.size("B")) as other:
        first_sequence[0] = first_sequence[0] + select(seq_starts[other + 1] <= first_row, 1, 0)
        end_sequence[0] = end_sequence[0] + select(seq_starts[other] < end_row, 1, 0)

    with kernel.loop("s", end_sequence[0] - first_sequence[0]) as s:
        sequence = kernel.let("sequence", first_sequence[0] + s)
        own_start = kernel.let("own_start", maximum(seq_starts[sequence] - first_row, 0))
        own_end = kernel.let("own_end", minimum(seq_starts[sequence + 1], end_row) - first_row)
        first_page = kernel.let("first_page", page_indptr[sequence])
        length = kernel.let("length", positions[first_row + own_end - 1] + 1)
        with kernel.loop("tile_index", (length + keys - 1) // keys) as tile_index:
            first_key = kernel.let("first_key", tile_index * keys)
            count = kernel.let("count", minimum(length - first_key, keys))
            kernel.barrier()
            with kernel.when(all_of(thread < max(1, keys // page_size), first_key + thread * page_size < length)):
                tile_pages[thread] = page_ids[first_page + first_key // page_size + thread]

            # --- scores ---
            for i in range(score_rows * score_keys):
                dots[i] = 0
            with kernel.loop("part", padded_vectors(facts) // KEY_VECTORS) as part:
                kernel.barrier()
                for start in range(0, keys * KEY_VECTORS, threads):
                    item = kernel.let("item", thread + start)
                    with kernel.when(True if start + threads <= keys * KEY_VECTORS else item < keys * KEY_VECTORS):
                        key, place = kernel.let("key", item // KEY_VECTORS), kernel.let("place", item % KEY_VECTORS)
                        vector = kernel.let("vector", part * KEY_VECTORS + place)
                        key_part[key, place] = zero
                        with kernel.when(all_of(key < count, True if vectors % KEY_VECTORS == 0 else vector < vectors)):
                            in_page = kernel.let("in_page", (first_key + key) % page_size)
                            key_part[key, place] = pages.load(tile_pages[key // page_size], 0, kv_head, in_page, vector)
                kernel.barrier()
                with kernel.loop("place", KEY_VECTORS) as place:
                    own_keys = [kernel.let("own_key", key_part[score_key + j * key_groups, place]) for j in range(score_keys)]
                    for i in range(score_rows):
                        row = score_row + i * row_groups
                        if row_groups * score_rows != rows:
                            row = minimum(row, rows - 1)
                        own_query = kernel.let("own_query", queries[row, part * KEY_VECTORS + place])
                        for j in range(score_keys):
                            here = i * score_keys + j
                            dots[here] = dots[here] + own_query * own_keys[j]
            for i in range(score_rows):
                row = score_row + i * row_groups
                with kernel.when(True if row_groups * score_rows == rows else row < rows):
                    own = all_of(row >= own_start, row < own_end)
                    position = positions[first_row + minimum(row, own_end - 1)]
                    for j in range(score_keys):
                        key = score_key + j * key_groups
                        seen = all_of(own, first_key + key <= position)
                        scores[row, key] = select(seen, sum_lanes(dots[i * score_keys + j], lanes), number(LOWEST, "float32"))
            kernel.barrier()

            # --- softmax: of a row that is not this sequence's, the largest stays and all weights are 0 ---
            best[0] = LOWEST
            for i in range(-(-keys // threads_a_row)):
                key = lane + i * threads_a_row
                with kernel.when(True if keys % threads_a_row == 0 else key < keys):
                    best[0] = maximum(best[0], scores[soft_row, key])
            fold_places[thread] = best[0]
            fold(maximum)
            new_largest = kernel.let("new_largest", maximum(largest[soft_row], fold_places[soft_row * threads_a_row]))
            sum_[0] = 0
            for i in range(-(-keys // threads_a_row)):
                key = lane + i * threads_a_row
                with kernel.when(True if keys % threads_a_row == 0 else key < keys):
                    weight = kernel.let("weight", exp(scores[soft_row, key] - new_largest))
                    scores[soft_row, key] = weight
                    sum_[0] = sum_[0] + weight
            kernel.barrier()
            fold_places[thread] = sum_[0]
            fold(lambda one, other: one + other)
            with kernel.when(lane == 0):
                correction[soft_row] = exp(largest[soft_row] - new_largest)
                total[soft_row] = total[soft_row] * correction[soft_row] + fold_places[thread]
                largest[soft_row] = new_largest
            kernel.barrier()

            # --- values ---
            with kernel.when(has_values):
                for i in range(value_rows):
                    result[i] = result[i] * splat(correction[row_of(i)], lanes)
                with kernel.loop("key", count) as key:
                    in_page = kernel.let("in_page", (first_key + key) % page_size)
                    value = kernel.let("value", pages.load(tile_pages[key // page_size], 1, kv_head, in_page, index))
                    for i in range(value_rows):
                        result[i] = result[i] + splat(scores[row_of(i), key], lanes) * value

    for i in range(value_rows):
        row = value_row + i * value_groups
        with kernel.when(all_of(has_values, first_row + row < end_row)):
            y[first_row + row, head, index] = cast(result[i] / splat(total[row_of(i)], lanes), facts.stored_dtype)
    return kernel.finish()
