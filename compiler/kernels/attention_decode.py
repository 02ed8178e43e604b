"""rope_attention where every sequence has one new token: norm, rotation, append and attention in one kernel. Row s is sequence s.

One workgroup: the query heads of one kv head (a part of them where they are more than eight) of one sequence, so each key and value is
loaded once for all of them; with ``split``, a range of that many keys, whose largest score, sum and weighted values go to scratch for
`attention_merge`. The workgroup in whose range the new token lies writes its key and value to the page and takes them from its own memory.
Keys go in tiles with a running softmax (Milakov & Gimelshein 2018; split: Dao et al. 2023, Flash-Decoding). Sums are float32.
One thread: every so-manyeth key of a tile, whole, with all heads' scores and weights of it, so that no score is added up between threads
and a query vector is loaded once for several keys; then a block of 16 bytes, or a part of one, of four values in a row at a time.
Needs: S == B; ``tile`` a multiple of the page and of the threads, ``split`` of the tile.
Measured on lavapipe (a CPU adapter), one layer of 14 query heads and 2 kv heads of 64, 8,192 keys in ranges of 256: 5 ms of one core, in
float16 and in 8-bit integers; 26 ms before, when several threads shared a key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import reduce

from ..ir.expr import Expr
from .builder import (
    Array,
    Kernel,
    KernelBuilder,
    Scalar,
    all_of,
    cast,
    exp,
    lane_of,
    maximum,
    minimum,
    number,
    select,
    splat,
    sum_of,
    vector,
)
from .linear_vector import power_of_two
from .new_heads import NewHeads
from .pages import LOWEST, Heads, Pages, largest_lane
from .vector_lanes import as_four, first_lanes, lane_at, part_of

# The most vectors of results that a thread keeps in registers.
MAX_RESULTS = 16
# Values that a thread loads before it uses the first, so that it waits for memory once for all of them.
VALUES_AT_ONCE = 4
# Threads that look for a tile's largest score of the same heads.
FOLD_LANES = 8


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """``heads`` query heads a workgroup, a divisor of those of one kv head; ``split`` None: one workgroup takes all keys."""

    heads: int
    threads: int = 64
    tile: int = 256
    split: int | None = None

    @property
    def score_vectors(self) -> int:
        """Vectors of 4 heads."""
        return -(-self.heads // 4)

    def work_size(self, facts: Heads) -> int:
        """Vectors that hold a tile's weights, and later the results of some groups of threads."""
        return max(self.tile * self.score_vectors, self.heads * facts.vectors)

    def value_vectors(self, facts: Heads) -> int:
        """Vectors of a value that a thread adds up, for all heads: a block, or a part of one where that were too many registers."""
        count = facts.block_vectors
        while count > 1 and count * self.heads > MAX_RESULTS:
            count //= 2
        return count

    def parts(self, facts: Heads) -> int:
        """Threads that together take a whole value."""
        return facts.vectors // self.value_vectors(facts)

    def shared_bytes(self, facts: Heads) -> int:
        """Workgroup memory: new heads, weights, folds, what is kept of each head, and the new key's scores."""
        rows, new_scores = (self.heads + 2) * facts.head_dim, self.heads * (facts.vectors + 1)
        return 4 * (rows + 4 * self.work_size(facts) + self.threads + 4 * self.score_vectors * (FOLD_LANES + 3) + new_scores)


def splits(split: int) -> Expr:
    """How many ranges of ``split`` keys the longest context has."""
    return ["ceildiv", "T", split]


def attention_decode(name: str, facts: Heads, options: DecodeOptions) -> Kernel:
    heads, threads, tile, split = options.heads, options.threads, options.tile, options.split
    lanes, vectors, page_size = facts.lanes, facts.vectors, facts.page_size
    score_vectors, block_vectors, value_vectors = options.score_vectors, facts.block_vectors, options.value_vectors(facts)
    blocks, parts = vectors // block_vectors, options.parts(facts)
    assert facts.group % heads == 0, (facts.group, heads)
    assert tile % page_size == tile % threads == (split or tile) % tile == page_size % VALUES_AT_ONCE == 0, options
    assert max(parts, FOLD_LANES * score_vectors, heads) <= threads, (parts, options)

    kernel = KernelBuilder(name, scalars=("T",) if split else ())
    new = NewHeads(kernel, facts)
    positions = kernel.buffer("positions", ("S",), "int32")
    page_indptr = kernel.buffer("page_indptr", (["add", "S", 1],), "int32")
    page_ids = kernel.buffer("page_ids", ("L",), "int32")
    pages = Pages(kernel, facts, write=True, blocks=True)
    if split:
        # Of each range and head one vector more, for the largest score and the sum of weights.
        result_places = kernel.scratch("partials", ("S", splits(split), facts.num_heads, vectors + 1), facts.vector_dtype, write=True)
    else:
        result_places = kernel.buffer("y", ("S", facts.num_heads, vectors), facts.stored_dtype, write=True)

    workgroups = facts.num_heads // heads
    group_x, row = kernel.grid(["mul", workgroups, splits(split)] if split else workgroups, "S")
    thread = kernel.threads(threads)
    workgroup, range_index = (group_x % workgroups, group_x // workgroups) if split else (group_x, 0)
    first_head = kernel.let("first_head", workgroup * heads)
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
    work = kernel.shared("work", (options.work_size(facts),), "float32x4")
    fold_places = kernel.shared("fold_places", (threads,), "float32")
    few = kernel.shared("few", (FOLD_LANES * score_vectors,), "float32x4")
    largest, correction = (kernel.shared(each, (score_vectors,), "float32x4") for each in ("largest", "correction"))
    products = kernel.shared("products", (heads * vectors,), "float32")
    new_weights = kernel.shared("new_weights", (score_vectors,), "float32x4")
    new_scores = kernel.shared("new_scores", (heads,), "float32")

    def fold(lane: Scalar, width: int, combine: object) -> None:
        def into(mine: Scalar, other: Scalar) -> None:
            fold_places[mine] = combine(fold_places[mine], fold_places[other])  # type: ignore[operator]

        kernel.fold(thread, lane, width, into)

    def add(one: Scalar, other: Scalar) -> Scalar:
        return one + other

    folding = kernel.local("folding", 1, "float32x4")

    def fold_vectors(source: Array, combine: Callable[[Scalar, Scalar], Scalar]) -> None:
        """Fold what each thread left in ``source``, a vector for each four heads, to a few for `folded`."""
        kernel.barrier()
        with kernel.when(thread < FOLD_LANES * score_vectors):
            folding[0] = source[thread]
            with kernel.loop("i", threads // FOLD_LANES - 1) as i:
                folding[0] = combine(folding[0], source[(i + 1) * FOLD_LANES * score_vectors + thread])
            few[thread] = folding[0]
        kernel.barrier()

    def folded(combine: Callable[[Scalar, Scalar], Scalar]) -> Scalar:
        """All threads' vectors as one. Of the first threads, one for each four heads."""
        folding[0] = few[thread]
        with kernel.loop("i", FOLD_LANES - 1) as i:
            folding[0] = combine(folding[0], few[(i + 1) * score_vectors + thread])
        return folding[0]

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
        with kernel.when(item < select(owns_new, heads + 2, heads) * vectors if split else item < (heads + 2) * vectors):
            row_index, index = kernel.let("row_index", item // vectors), kernel.let("index", item % vectors)
            factor = new.factor(fold_places[minimum(row_index, heads) * threads_a_row]) if facts.norm_eps is not None else None
            value = kernel.let("value", new.vector(row, head_of(row_index), position, index, factor))
            scale = splat(number(1 / math.sqrt(facts.head_dim), "float32"), lanes)
            rows[row_index, index] = select(row_index < heads, value * scale, value)
    with kernel.when(thread < score_vectors):
        largest[thread] = LOWEST
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

    def new_blocks() -> Iterator[tuple[Scalar, Scalar, Scalar]]:
        """Plane and index of the thread's blocks of the new key and value, and whether there is such a block."""
        for start in range(0, 2 * blocks, threads):
            item = kernel.let("item", thread + start)
            yield item // blocks, item % blocks, item < 2 * blocks

    page = kernel.let("page", page_ids[first_page + position // page_size])
    writes = all_of(owns_new, first_head % facts.group == 0 if heads < facts.group else True)
    for plane, block, guard in new_blocks():
        with kernel.when(guard):
            places = [block * block_vectors + i for i in range(block_vectors)]
            fresh = [rows[plane + heads, place] for place in places]
            with kernel.when(writes):
                pages.store(page, plane, kv_head, position % page_size, block, fresh, largest_of_new(plane))
            # From here on the new key and value are what their page makes of them, so that this token sees what later ones will.
            for place, value in zip(places, pages.rounded(fresh, largest_of_new(plane)), strict=True):
                rows[plane + heads, place] = value
    kernel.barrier()
    # The new key's scores, by the threads that have nothing else to do until the first keys come.
    with kernel.when(owns_new):
        for start in range(0, heads * vectors, threads):
            item = kernel.let("item", thread + start)
            with kernel.when(True if start + threads <= heads * vectors else item < heads * vectors):
                one, other = rows[item // vectors, item % vectors], rows[heads, item % vectors]
                products[item] = sum_of(lane_of(one, lane) * lane_of(other, lane) for lane in range(lanes))
    kernel.barrier()
    with kernel.when(all_of(owns_new, thread < heads)):
        new_score = kernel.local("new_score", 1, "float32", fill=0)
        with kernel.loop("i", vectors) as i:
            new_score[0] = new_score[0] + products[thread * vectors + i]
        new_scores[thread] = new_score[0]
    kernel.barrier()

    # --- keys, then values, tile by tile ---
    keys_a_thread = tile // threads
    scores = kernel.local("scores", keys_a_thread * heads, "float32")
    totals = kernel.local("totals", score_vectors, "float32x4", fill=0)
    key_blocks = kernel.local("key_blocks", keys_a_thread, pages.block_dtype)
    value_blocks = kernel.local("value_blocks", VALUES_AT_ONCE, pages.block_dtype)
    result = kernel.local("result", heads * value_vectors, facts.vector_dtype, fill=0)
    # A power of two, so that turns end where the tile does.
    value_groups = min(power_of_two(threads // parts + 1) // 2, tile // VALUES_AT_ONCE)
    value_group, part = kernel.let("value_group", thread // parts), kernel.let("part", thread % parts)

    def tiles() -> AbstractContextManager[Scalar]:
        return kernel.when(count > 0) if split == tile else kernel.loop("tile_index", (count + tile - 1) // tile)

    with tiles() as looped:
        tile_index = 0 if split == tile else looped
        tile_start = kernel.let("tile_start", first_key + tile_index * tile)
        tile_count = kernel.let("tile_count", minimum(count - tile_index * tile, tile))
        cached = kernel.let("cached", minimum(position - tile_start, tile_count))
        for i in range(keys_a_thread * heads):
            scores[i] = 0
        keys, key_pages = [], []
        for u in range(keys_a_thread):
            # Keys beyond the last cached one are read as that and then left out, which costs less than a branch.
            key = kernel.let("key", tile_start + minimum(u * threads + thread, maximum(cached - 1, 0)))
            keys.append(key)
            key_pages.append(kernel.let("key_page", page_ids[first_page + key // page_size]))
        with kernel.loop("block", blocks) as block:
            for u in range(keys_a_thread):
                key_blocks[u] = pages.block(key_pages[u], 0, kv_head, keys[u] % page_size, block)
            key_vectors = [[kernel.let("key_vector", each) for each in pages.vectors_of(key_blocks[u])] for u in range(keys_a_thread)]
            for h in range(heads):
                for i in range(block_vectors):
                    query = kernel.let("query", rows[h, block * block_vectors + i])
                    for u in range(keys_a_thread):
                        scores[u * heads + h] = added_dot(scores[u * heads + h], query, key_vectors[u][i], lanes)
        value_scales = []
        for u in range(keys_a_thread):
            key = u * threads + thread
            if pages.quantized:
                value_scales.append(kernel.let("value_scale", pages.scale(key_pages[u], 1, kv_head, keys[u] % page_size)))
            scale = kernel.let("scale", pages.scale(key_pages[u], 0, kv_head, keys[u] % page_size)) if pages.quantized else None
            for h in range(heads):
                score = scores[u * heads + h] * scale if scale is not None else scores[u * heads + h]
                beyond = select(key < tile_count, new_scores[h], number(LOWEST, "float32"))
                scores[u * heads + h] = select(key < cached, score, beyond)
        mine = [[kernel.let("mine", four_heads(scores, u * heads, v, heads)) for v in range(score_vectors)] for u in range(keys_a_thread)]
        kernel.barrier()
        for v in range(score_vectors):
            work[thread * score_vectors + v] = reduce(maximum, (each[v] for each in mine))
        fold_vectors(work, maximum)
        with kernel.when(thread < score_vectors):
            best = kernel.let("best", maximum(largest[thread], folded(maximum)))
            correction[thread] = exp(largest[thread] - best)
            largest[thread] = best
        kernel.barrier()
        for v in range(score_vectors):
            best, by = kernel.let("best", largest[v]), kernel.let("by", correction[v])
            totals[v] = totals[v] * by
            for u in range(keys_a_thread):
                weights = kernel.let("weights", exp(mine[u][v] - best))
                totals[v] = totals[v] + weights
                # The new token's value is not read from its page.
                key = u * threads + thread
                with kernel.when(key == cached):
                    new_weights[v] = weights
                if pages.quantized:
                    weights = weights * splat(value_scales[u])
                work[key * score_vectors + v] = select(key == cached, number(0, "float32x4"), weights)
            for h in range(v * 4, min(v * 4 + 4, heads)):
                for i in range(value_vectors):
                    result[h * value_vectors + i] = result[h * value_vectors + i] * splat(lane_of(by, h % 4), lanes)
        kernel.barrier()

        def add_value(weights: Array, first: Scalar | int, value: list[Scalar]) -> None:
            value = [kernel.let("value", each) for each in value]
            for v in range(score_vectors):
                four = kernel.let("four", weights[first + v])
                for h in range(v * 4, min(v * 4 + 4, heads)):
                    for i in range(value_vectors):
                        at = h * value_vectors + i
                        result[at] = result[at] + splat(lane_of(four, h % 4), lanes) * value[i]

        with kernel.when(True if value_groups * parts == threads else value_group < value_groups):
            turn_keys = value_groups * VALUES_AT_ONCE
            with kernel.loop("turn", (cached + turn_keys - 1) // turn_keys) as turn:
                first = kernel.let("first", turn * turn_keys + value_group * VALUES_AT_ONCE)
                # Keys beyond the last weigh nothing; for their values the last one is read.
                value_keys = [kernel.let("value_key", tile_start + minimum(first + i, cached - 1)) for i in range(VALUES_AT_ONCE)]
                value_page = kernel.let("value_page", page_ids[first_page + value_keys[0] // page_size])
                for i, key in enumerate(value_keys):
                    value_blocks[i] = pages.block(value_page, 1, kv_head, key % page_size, part * value_vectors // block_vectors)
                for i in range(VALUES_AT_ONCE):
                    add_value(work, (first + i) * score_vectors, part_of(pages.vectors_of(value_blocks[i]), part, value_vectors))
            with kernel.when(all_of(value_group == 0, cached < tile_count)):
                add_value(new_weights, 0, [rows[heads + 1, part * value_vectors + i] for i in range(value_vectors)])

    # --- the sums of all threads' weights, and of all value groups ---
    kernel.barrier()
    for v in range(score_vectors):
        work[thread * score_vectors + v] = totals[v]
    fold_vectors(work, add)
    with kernel.when(thread < score_vectors):
        correction[thread] = folded(add)

    size = heads * vectors
    kept = value_groups
    while kept * size > options.work_size(facts):
        kept = -(-kept // 2)
    places = [(h * value_vectors + i, h * vectors + part * value_vectors + i) for h in range(heads) for i in range(value_vectors)]
    for turn in range(-(-value_groups // kept) - 1, -1, -1):
        first = turn * kept
        inside = min(kept, value_groups - first)
        with kernel.when(all_of(value_group >= first, value_group < first + inside)):
            for mine, place in places:
                work[(value_group - first) * size + place] = as_four(result[mine], lanes)
        kernel.barrier()
        if turn:
            with kernel.when(value_group < inside):
                for mine, place in places:
                    result[mine] = result[mine] + first_lanes(work[value_group * size + place], lanes)
            kernel.barrier()
    for start in range(0, size, threads):
        item = kernel.let("item", thread + start)
        with kernel.when(all_of(item < size, count > 0 if split else True)):
            folding[0] = 0
            with kernel.loop("group", kept) as group:
                folding[0] = folding[0] + work[group * size + item]
            head, index = kernel.let("head", item // vectors), kernel.let("index", item % vectors)
            sum_ = first_lanes(folding[0], lanes)
            if split:
                result_places[row, range_index, first_head + head, index] = sum_
            else:
                total = lane_at(kernel.let("of_heads", correction[head // 4]), head % 4)
                result_places[row, first_head + head, index] = cast(sum_ / splat(total, lanes), facts.stored_dtype)
    if split:
        with kernel.when(all_of(thread < heads, count > 0)):
            kept_of = [lane_at(kernel.let("of_heads", each[thread // 4]), thread % 4) for each in (largest, correction)]
            result_places[row, range_index, first_head + thread, vectors] = vector(
                *kept_of, *(number(0, "float32") for _ in range(lanes - 2))
            )
    return kernel.finish()


def added_dot(sum_: Scalar, one: Scalar, other: Scalar, lanes: int) -> Scalar:
    """``sum_`` and the dot product, lane by lane, so that a device may fuse each product into the sum."""
    for lane in range(lanes):
        sum_ = sum_ + lane_of(one, lane) * lane_of(other, lane)
    return sum_


def four_heads(scores: Array, first: int, v: int, heads: int) -> Scalar:
    """A vector of a key's scores; heads that there are not have the lowest."""
    return vector(*(scores[first + h] if h < heads else number(LOWEST, "float32") for h in range(v * 4, v * 4 + 4)))
