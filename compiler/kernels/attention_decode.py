"""rope_attention where every sequence has one new token: norm, rotation, append and attention in one kernel. Row s is sequence s.

One workgroup: the query heads of one kv head (a part of them where they are more than eight) of one sequence, so each key and value is
loaded once for all of them; with ``split``, a range of that many keys, whose largest score, sum and weighted values go to scratch for
`attention_merge`. The workgroup in whose range the new token lies writes its key and value to the page and takes them from its own memory.
Keys go in tiles with a running softmax (Milakov & Gimelshein 2018; split: Dao et al. 2023, Flash-Decoding). Sums are float32.
One thread: vectors lane, lane + key_lanes, ... of every so-manyeth key of a tile; then one vector of every so-manyeth value.
Needs: S == B; ``tile`` a multiple of the page and of threads / key_lanes, ``split`` of the tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..expr import Expr
from .builder import Kernel, KernelBuilder, Scalar, all_of, cast, exp, lane_of, maximum, minimum, number, select, splat, sum_lanes, sum_of
from .linear_vector import power_of_two
from .new_heads import NewHeads
from .pages import LOWEST, Heads, Pages, largest_lane

# Values that a thread loads before it uses the first, so that it waits for memory once for all of them.
VALUES_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """``heads`` query heads a workgroup, a divisor of those of one kv head; ``split`` None: one workgroup takes all keys."""

    heads: int
    threads: int = 256
    tile: int = 128
    key_lanes: int = 4
    split: int | None = None

    def shared_bytes(self, facts: Heads) -> int:
        """Workgroup memory: new heads, partial sums, scores, a fold, and what is kept of each head."""
        rows = (self.heads + 2) * facts.head_dim
        partial = max(self.heads, facts.lanes) * self.threads
        return 4 * (rows + partial + self.heads * self.tile + self.threads + 3 * power_of_two(self.heads) + self.tile // facts.page_size)


def splits(split: int) -> Expr:
    """How many ranges of ``split`` keys the longest context has."""
    return ["ceildiv", "T", split]


def attention_decode(name: str, facts: Heads, options: DecodeOptions) -> Kernel:
    heads, threads, tile, key_lanes, split = options.heads, options.threads, options.tile, options.key_lanes, options.split
    lanes, vectors, page_size = facts.lanes, facts.vectors, facts.page_size
    keys_at_once = threads // key_lanes
    assert facts.group % heads == 0, (facts.group, heads)
    assert tile % page_size == tile % keys_at_once == (split or tile) % tile == 0, options
    assert vectors <= threads, (vectors, threads)

    kernel = KernelBuilder(name, scalars=("T",) if split else ())
    new = NewHeads(kernel, facts)
    positions = kernel.buffer("positions", ("S",), "int32")
    page_indptr = kernel.buffer("page_indptr", (["add", "S", 1],), "int32")
    page_ids = kernel.buffer("page_ids", ("L",), "int32")
    pages = Pages(kernel, facts, write=True)
    if split:
        # Of each range and head one vector more, for the largest score and the sum of weights.
        shape = ("S", splits(split), facts.num_heads, (vectors + 1) * lanes)
        result_places = kernel.scratch("partials", shape, "float32", write=True)
    else:
        result_places = kernel.buffer("y", ("S", facts.num_heads, facts.head_dim), facts.activation, write=True)

    blocks = facts.num_heads // heads
    group_x, row = kernel.grid(["mul", blocks, splits(split)] if split else blocks, "S")
    thread = kernel.threads(threads)
    block, range_index = (group_x % blocks, group_x // blocks) if split else (group_x, 0)
    first_head = kernel.let("first_head", block * heads)
    kv_head = kernel.let("kv_head", first_head // facts.group)
    first_key: Scalar = kernel.let("first_key", range_index * split) if split else 0
    position = kernel.let("position", positions[row])
    first_page = kernel.let("first_page", page_indptr[row])
    # Keys of this workgroup, the new one included; 0 where the range lies beyond the sequence.
    length = position + 1 - first_key
    count = kernel.let("count", maximum(minimum(length, split), 0) if split else length)
    owns_new = all_of(first_key <= position, position < first_key + split) if split else True

    # q of the workgroup's heads, then the new key and value.
    rows = kernel.shared("rows", (heads + 2, vectors), facts.vector_dtype)
    partial = kernel.shared("partial", (max(heads, lanes) * threads,), "float32")
    scores = kernel.shared("scores", (heads, tile), "float32")
    fold_places = kernel.shared("fold_places", (threads,), "float32")
    padded_heads = power_of_two(heads)
    largest, total, correction = (kernel.shared(each, (padded_heads,), "float32") for each in ("largest", "total", "correction"))
    tile_pages = kernel.shared("tile_pages", (tile // page_size,), "int32")

    def fold(lane: Scalar, width: int, combine: object) -> None:
        def into(mine: Scalar, other: Scalar) -> None:
            fold_places[mine] = combine(fold_places[mine], fold_places[other])  # type: ignore[operator]

        kernel.fold(thread, lane, width, into)

    def add(one: Scalar, other: Scalar) -> Scalar:
        return one + other

    # --- the new token's heads ---
    def head_of(row_index: Scalar) -> Scalar:
        return select(row_index < heads, first_head + row_index, facts.num_heads + (row_index - heads) * facts.num_kv_heads + kv_head)

    threads_a_row = threads // power_of_two(heads + 1)
    if facts.norm_eps is not None:
        lane = kernel.let("lane", thread % threads_a_row)
        head = kernel.let("head", head_of(minimum(thread // threads_a_row, heads)))
        squares = kernel.local("squares", 1, "float32", fill=0)
        with kernel.loop("i", -(-facts.head_dim // threads_a_row)) as i:
            element = kernel.let("element", i * threads_a_row + lane)
            with kernel.when(element < facts.head_dim):
                value = kernel.let("value", new.element(row, head, element))
                squares[0] = squares[0] + value * value
        fold_places[thread] = squares[0]
        fold(lane, threads_a_row, add)
    for start in range(0, (heads + 2) * vectors, threads):
        item = kernel.let("item", thread + start)
        with kernel.when(True if start + threads <= (heads + 2) * vectors else item < (heads + 2) * vectors):
            row_index, index = kernel.let("row_index", item // vectors), kernel.let("index", item % vectors)
            factor = new.factor(fold_places[minimum(row_index, heads) * threads_a_row]) if facts.norm_eps is not None else None
            value = kernel.let("value", new.vector(row, head_of(row_index), position, index, factor))
            scale = splat(number(1 / math.sqrt(facts.head_dim), "float32"), lanes)
            rows[row_index, index] = select(row_index < heads, value * scale, value)
    with kernel.when(thread < padded_heads):
        largest[thread] = LOWEST
        total[thread] = 0
    kernel.barrier()
    if pages.quantized:
        plane, lane = kernel.let("plane", thread // (threads // 2)), kernel.let("lane", thread % (threads // 2))
        magnitude = kernel.local("magnitude", 1, "float32", fill=0)
        for start in range(0, vectors, threads // 2):
            with kernel.when(True if start + threads // 2 <= vectors else lane + start < vectors):
                magnitude[0] = maximum(magnitude[0], largest_lane(rows[plane + heads, lane + start], lanes))
        fold_places[thread] = magnitude[0]
        fold(lane, threads // 2, maximum)

    def largest_of_new(plane: Scalar) -> Scalar | None:
        return fold_places[plane * (threads // 2)] if pages.quantized else None

    def new_vectors() -> Iterator[tuple[Scalar, Scalar, Scalar]]:
        """Plane and index of the thread's vectors of the new key and value, and whether there is such a vector."""
        for start in range(0, 2 * vectors, threads):
            item = kernel.let("item", thread + start)
            yield item // vectors, item % vectors, item < 2 * vectors

    with kernel.when(all_of(owns_new, first_head % facts.group == 0 if heads < facts.group else True)):
        page = kernel.let("page", page_ids[first_page + position // page_size])
        for plane, index, guard in new_vectors():
            with kernel.when(guard):
                pages.store(page, plane, kv_head, position % page_size, index, rows[plane + heads, index], largest_of_new(plane))
    # From here on the new key and value are what their page makes of them, so that this token sees what later ones will.
    for plane, index, guard in new_vectors():
        with kernel.when(guard):
            rows[plane + heads, index] = pages.quantize(rows[plane + heads, index], largest_of_new(plane))

    # --- keys, then values, tile by tile ---
    key_in_pass, key_lane = kernel.let("key_in_pass", thread // key_lanes), kernel.let("key_lane", thread % key_lanes)
    threads_a_head = threads // padded_heads
    head, lane = kernel.let("head", thread // threads_a_head), kernel.let("lane", thread % threads_a_head)
    has_head = True if padded_heads == heads else head < heads
    value_groups = threads // vectors
    value_group, index = kernel.let("value_group", thread // vectors), kernel.let("index", thread % vectors)
    has_values = True if value_groups * vectors == threads else value_group < value_groups

    vectors_a_lane = -(-vectors // key_lanes)
    key_vectors = kernel.local("key_vectors", vectors_a_lane, facts.vector_dtype, fill=0)
    key_scale = kernel.local("key_scale", 1, "float32", fill=1) if pages.quantized else None
    values = kernel.local("values", VALUES_AT_ONCE, facts.vector_dtype, fill=0)
    dot = kernel.local("dot", 1, facts.vector_dtype)
    best, sum_ = kernel.local("best", 1, "float32"), kernel.local("sum", 1, "float32")
    result = kernel.local("result", heads, facts.vector_dtype, fill=0)

    with kernel.loop("tile_index", (count + tile - 1) // tile) as tile_index:
        tile_start = kernel.let("tile_start", first_key + tile_index * tile)
        tile_count = kernel.let("tile_count", minimum(count - tile_index * tile, tile))
        cached = kernel.let("cached", minimum(position - tile_start, tile_count))
        kernel.barrier()
        with kernel.when(all_of(thread < tile // page_size, tile_start + thread * page_size <= position)):
            tile_pages[thread] = page_ids[first_page + tile_start // page_size + thread]
        kernel.barrier()

        with kernel.loop("pass_index", (tile_count + keys_at_once - 1) // keys_at_once) as pass_index:
            key = kernel.let("key", pass_index * keys_at_once + key_in_pass)
            places = [(i, key_lane + i * key_lanes) for i in range(vectors_a_lane)]
            inside = [True if (i + 1) * key_lanes <= vectors else place < vectors for i, place in places]
            with kernel.when(key < cached):
                page = kernel.let("page", tile_pages[key // page_size])
                for (i, place), guard in zip(places, inside, strict=True):
                    with kernel.when(guard):
                        key_vectors[i] = pages.load_unscaled(page, 0, kv_head, key % page_size, place)
                if key_scale is not None:
                    key_scale[0] = pages.scale(page, 0, kv_head, key % page_size)
            with kernel.when(all_of(key == cached, cached < tile_count)):
                for (i, place), guard in zip(places, inside, strict=True):
                    with kernel.when(guard):
                        key_vectors[i] = rows[heads, place]
                if key_scale is not None:
                    key_scale[0] = 1
            for h in range(heads):
                dot[0] = 0
                for (i, place), guard in zip(places, inside, strict=True):
                    with kernel.when(guard):
                        dot[0] = dot[0] + rows[h, place] * key_vectors[i]
                score = sum_lanes(dot[0], lanes)
                partial[h * threads + thread] = score * key_scale[0] if key_scale is not None else score
            kernel.barrier()
            for start in range(0, heads * keys_at_once, threads):
                item = kernel.let("item", thread + start)
                with kernel.when(True if start + threads <= heads * keys_at_once else item < heads * keys_at_once):
                    # Item h * keys_at_once + k has its sums at h * threads + k * key_lanes.
                    score = sum_of(partial[item * key_lanes + lane_index] for lane_index in range(key_lanes))
                    scores[item // keys_at_once, pass_index * keys_at_once + item % keys_at_once] = score
            kernel.barrier()

        best[0] = LOWEST
        keys_of_thread = (tile_count - lane + threads_a_head - 1) // threads_a_head
        with kernel.when(has_head), kernel.loop("i", keys_of_thread) as i:
            best[0] = maximum(best[0], scores[head, i * threads_a_head + lane])
        fold_places[thread] = best[0]
        fold(lane, threads_a_head, maximum)
        new_largest = kernel.let("new_largest", maximum(largest[head], fold_places[head * threads_a_head]))
        sum_[0] = 0
        with kernel.when(has_head), kernel.loop("i", keys_of_thread) as i:
            key = kernel.let("key", i * threads_a_head + lane)
            weight = kernel.let("weight", exp(scores[head, key] - new_largest))
            sum_[0] = sum_[0] + weight
            scores[head, key] = weight
            if pages.quantized:
                with kernel.when(key < cached):
                    scores[head, key] = weight * pages.scale(tile_pages[key // page_size], 1, kv_head, key % page_size)
        kernel.barrier()
        fold_places[thread] = sum_[0]
        fold(lane, threads_a_head, add)
        with kernel.when(lane == 0):
            correction[head] = exp(largest[head] - new_largest)
            total[head] = total[head] * correction[head] + fold_places[thread]
            largest[head] = new_largest
        kernel.barrier()

        def add_values(keys: list[Scalar]) -> None:
            for u, key in enumerate(keys):
                values[u] = pages.load_unscaled(tile_pages[key // page_size], 1, kv_head, key % page_size, index)
            for u, key in enumerate(keys):
                for h in range(heads):
                    result[h] = result[h] + splat(scores[h, key], lanes) * values[u]

        for h in range(heads):
            result[h] = result[h] * splat(correction[h], lanes)
        with kernel.when(has_values):
            step = value_groups * VALUES_AT_ONCE
            rounds = kernel.let("rounds", cached // step)
            with kernel.loop("round", rounds) as round_:
                add_values([kernel.let("key", round_ * step + u * value_groups + value_group) for u in range(VALUES_AT_ONCE)])
            rest = cached - rounds * step - value_group
            with kernel.loop("i", (rest + value_groups - 1) // value_groups) as i:
                add_values([kernel.let("key", rounds * step + i * value_groups + value_group)])
            with kernel.when(all_of(value_group == 0, cached < tile_count)):
                for h in range(heads):
                    result[h] = result[h] + splat(scores[h, cached], lanes) * rows[heads + 1, index]

    # --- the sum of all value groups, an element a thread ---
    heads_at_once = max(heads, lanes) // lanes
    added = kernel.local("added", 1, "float32")
    for first in range(0, heads, heads_at_once):
        here = range(first, min(first + heads_at_once, heads))
        planes = len(here) * lanes
        kernel.barrier()
        for h in here:
            for c in range(lanes):
                partial[((h - first) * lanes + c) * threads + thread] = lane_of(result[h], c)
        kernel.barrier()
        for start in range(0, planes * vectors, threads):
            item = kernel.let("item", thread + start)
            with kernel.when(all_of(item < planes * vectors, count > 0 if split else True)):
                plane, index = kernel.let("plane", item // vectors), kernel.let("index", item % vectors)
                added[0] = 0
                with kernel.loop("group", value_groups) as group:
                    added[0] = added[0] + partial[plane * threads + group * vectors + index]
                local_head = first + plane // lanes
                place = (row, *((range_index,) if split else ()), first_head + local_head, index * lanes + plane % lanes)
                result_places[place] = added[0] if split else cast(added[0] / total[local_head], facts.activation)
    if split:
        with kernel.when(all_of(thread < heads, count > 0)):
            result_places[row, range_index, first_head + thread, facts.head_dim] = largest[thread]
            result_places[row, range_index, first_head + thread, facts.head_dim + 1] = total[thread]
    return kernel.finish()
