"""The cached keys and values of decode attention, tile by tile, and the workgroup's result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce

from ..ir.heads import Scores
from .builder import Array, Scalar, all_of, cast, maximum, minimum, number, select
from .decode_new_token import NewToken
from .decode_queries import StoredRange
from .decode_range import NewTokenRange
from .head_fold import HeadFold
from .linear_vector import power_of_two
from .scores import LOWEST, capped, weight
from .vectors import as_four, first_lanes, lane_at, lane_of, splat, vector


class CachedTiles:
    """A thread scores every nth key of a tile, all elements for all heads; then it sums a block, or a part of one, of
    every nth value. The results of all threads are added in workgroup memory at the end, or for each tile
    (`DecodeOptions.each_tile`).

    ``queries`` are the workgroup's scaled queries in workgroup memory. ``new`` is the new token if it is not on its
    page yet, or None. ``shared`` holds the tile's weights, ``largest`` and ``correction`` the running softmax, a vector
    for each four heads.
    """

    def __init__(
        self, work: NewTokenRange | StoredRange, queries: Array, scores: Scores, new: NewToken | None = None
    ) -> None:
        self.work, self.queries, self.new, self.facts = work, queries, new, scores
        kernel, options, heads = work.kernel, work.options, work.facts
        self.shared = kernel.shared("work", (options.work_size(heads),), "float32x4")
        self.largest, self.correction = (
            kernel.shared(each, (options.score_vectors,), "float32x4") for each in ("largest", "correction")
        )
        if new is not None:
            self.new_weights = kernel.shared("new_weights", (options.score_vectors,), "float32x4")
        self.folds = HeadFold(work)
        self.blocks, self.value_vectors = heads.vectors // heads.block_vectors, options.value_vectors(heads)
        self.keys_a_thread = options.tile // options.threads
        self.each_tile, self.values_at_once = options.each_tile, options.values_at_once
        # A power of two, so that the iterations cover the tile exactly.
        parts = options.parts(heads)
        self.value_groups = min(power_of_two(options.threads // parts + 1) // 2, options.tile // self.values_at_once)

    def clear(self) -> None:
        """Start the softmax. Ends without a barrier."""
        with self.work.kernel.when(self.work.thread < self.work.options.score_vectors):
            self.largest[self.work.thread] = LOWEST

    def attend(self) -> None:
        """Attend to all tiles, and write the results."""
        self.allocate()
        with self.tiles():
            self.score_keys()
            self.update_softmax()
            self.add_values()
        self.store()

    def allocate(self) -> None:
        """The thread's registers and its part of each value."""
        work, kernel, heads = self.work, self.work.kernel, self.work.options.heads
        parts = work.options.parts(work.facts)
        self.scores = kernel.local("scores", self.keys_a_thread * heads, "float32")
        self.totals = kernel.local("totals", work.options.score_vectors, "float32x4", fill=0)
        self.key_blocks = kernel.local("key_blocks", self.keys_a_thread, work.pages.block_dtype)
        self.value_blocks = kernel.local("value_blocks", self.values_at_once, work.pages.block_dtype)
        self.result = kernel.local(
            "result", heads * self.value_vectors, work.facts.vector_dtype, fill=None if self.each_tile else 0
        )
        if self.each_tile:
            self.sums = kernel.local("sums", work.options.sum_vectors(work.facts), "float32x4", fill=0)
        self.value_group, self.part = (
            kernel.let("value_group", work.thread // parts),
            kernel.let("part", work.thread % parts),
        )
        self.has_values = (
            True if self.value_groups * parts == work.options.threads else self.value_group < self.value_groups
        )

    @contextmanager
    def tiles(self) -> Iterator[None]:
        """A loop over the tiles of the workgroup's keys: ``count`` of them from ``start`` on, of which ``cached`` are
        on pages.
        """
        work, kernel, tile = self.work, self.work.kernel, self.work.options.tile
        with kernel.loop("tile_index", (work.count + tile - 1) // tile) as tile_index:
            self.start = kernel.let("tile_start", work.first_key + tile_index * tile)
            self.count = kernel.let("tile_count", minimum(work.count - tile_index * tile, tile))
            self.cached = self.count
            if self.new is not None:
                self.cached = kernel.let("cached", minimum(work.position - self.start, self.count))
            yield

    def score_keys(self) -> None:
        """The scores of the thread's keys for all heads."""
        work, kernel, facts = self.work, self.work.kernel, self.work.facts
        heads, pages = work.options.heads, work.pages
        for i in range(self.keys_a_thread * heads):
            self.scores[i] = 0
        keys, key_pages = [], []
        for u in range(self.keys_a_thread):
            # For a key beyond the last cached one, the last one is read and ignored later, which costs less than a
            # branch.
            last_cached = self.cached - 1 if self.new is None else maximum(self.cached - 1, 0)
            cached_key = minimum(self._key(u), last_cached)
            keys.append(kernel.let("key", self.start + cached_key))
            key_pages.append(kernel.let("key_page", work.page_of(keys[-1])))
        with kernel.loop("block", self.blocks) as block:
            for u in range(self.keys_a_thread):
                self.key_blocks[u] = pages.block(key_pages[u], 0, work.kv_head, keys[u] % facts.page_size, block)
            blocks = [pages.vectors_of(self.key_blocks[u]) for u in range(self.keys_a_thread)]
            at_once = work.options.vectors_at_once(facts)
            for first in range(0, facts.block_vectors, at_once):
                indices = range(first, min(first + at_once, facts.block_vectors))
                loaded = {
                    (u, i): kernel.let("key_vector", blocks[u][i]) for u in range(self.keys_a_thread) for i in indices
                }
                for h in range(heads):
                    for i in indices:
                        query = kernel.let("query", self.queries[h, block * facts.block_vectors + i])
                        for u in range(self.keys_a_thread):
                            at = u * heads + h
                            self.scores[at] = added_dot(self.scores[at], query, loaded[u, i], facts.lanes)
        self.value_scales = []
        for u in range(self.keys_a_thread):
            scale = None
            if pages.quantized:
                self.value_scales.append(
                    kernel.let("value_scale", pages.scale(key_pages[u], 1, work.kv_head, keys[u] % facts.page_size))
                )
                scale = kernel.let("scale", pages.scale(key_pages[u], 0, work.kv_head, keys[u] % facts.page_size))
            for h in range(heads):
                self._finish_score(u, h, scale)

    def update_softmax(self) -> None:
        """Turn scores into weights, those of cached keys in ``shared``, and scale the sums so far to the largest
        scores.
        """
        work, kernel, vectors = self.work, self.work.kernel, self.work.options.score_vectors
        heads = work.options.heads
        mine = [
            [kernel.let("mine", four_heads(self.scores, u * heads, v, heads)) for v in range(vectors)]
            for u in range(self.keys_a_thread)
        ]
        kernel.barrier()
        for v in range(vectors):
            self.shared[work.thread * vectors + v] = reduce(maximum, (each[v] for each in mine))
        self.folds.fold(self.shared, maximum)
        with kernel.when(work.thread < vectors):
            best = kernel.let("best", maximum(self.largest[work.thread], self.folds.folded(maximum)))
            self.correction[work.thread] = weight(self.largest[work.thread], best)
            self.largest[work.thread] = best
        kernel.barrier()
        for v in range(vectors):
            best, by = kernel.let("best", self.largest[v]), kernel.let("by", self.correction[v])
            self.totals[v] = self.totals[v] * by
            for u in range(self.keys_a_thread):
                self._store_weights(u, v, kernel.let("weights", weight(mine[u][v], best)))
            for h in range(v * 4, v * 4 if self.each_tile else min(v * 4 + 4, heads)):
                for i in range(self.value_vectors):
                    at = h * self.value_vectors + i
                    self.result[at] = self.result[at] * splat(lane_of(by, h % 4), work.facts.lanes)
        kernel.barrier()

    def add_values(self) -> None:
        """Add the tile's weighted values, and finally the new token's."""
        work, kernel, size = self.work, self.work.kernel, self.work.options.heads * self.work.facts.vectors
        with kernel.when(self.has_values):
            if self.each_tile:
                for i in range(work.options.heads * self.value_vectors):
                    self.result[i] = 0
            self._add_cached_values()
            if self.new is not None:
                with kernel.when(all_of(self.value_group == 0, self.cached < self.count)):
                    row = work.options.heads + 1
                    value = [self.new.rows[row, self.part * self.value_vectors + i] for i in range(self.value_vectors)]
                    self._add_value(self.new_weights, 0, value)
        if not self.each_tile:
            return
        kernel.barrier()
        kept = self._gather_results()
        for i, item, guard in self._items():
            with kernel.when(guard):
                correction = self._of_head(self.correction, item // work.facts.vectors)
                self.sums[i] = self.sums[i] * splat(correction) + self.folds.sum(kept, size, self.shared, item)

    def store(self) -> None:
        """Sum weights and results over threads. Store the weighted mean, or for a range the sums and the largest
        score.
        """
        work, kernel, split = self.work, self.work.kernel, self.work.options.split
        heads, vectors, lanes = work.options.heads, work.facts.vectors, work.facts.lanes
        self._sum_weights()
        if self.each_tile:
            kernel.barrier()
        else:
            kept = self._gather_results()
        row = work.result_row()
        for i, item, guard in self._items():
            with kernel.when(guard):
                sum_ = self.sums[i] if self.each_tile else self.folds.sum(kept, heads * vectors, self.shared, item)
                head, index = kernel.let("head", item // vectors), kernel.let("index", item % vectors)
                if split:
                    work.results[row, work.first_head + head, index] = first_lanes(sum_, lanes)
                else:
                    mean = first_lanes(sum_, lanes) / splat(self._of_head(self.correction, head), lanes)
                    work.results[row, work.first_head + head, index] = cast(mean, work.facts.stored_dtype)
        if split:
            with kernel.when(work.thread < heads):
                kept_of = [self._of_head(each, work.thread) for each in (self.largest, self.correction)]
                zeros = [number(0, "float32")] * (lanes - 2)
                work.results[row, work.first_head + work.thread, vectors] = vector(*kept_of, *zeros)

    def _items(self) -> Iterator[tuple[int, Scalar, Scalar]]:
        """The thread's vectors of the workgroup's result: the number of each one, its place among those of all heads,
        and whether it exists.
        """
        work, size = self.work, self.work.options.heads * self.work.facts.vectors
        for i in range(work.options.sum_vectors(work.facts)):
            item = work.kernel.let("item", work.thread + i * work.options.threads)
            yield i, item, item < size

    def _of_head(self, of_heads: Array, head: Scalar) -> Scalar:
        return lane_at(self.work.kernel.let("of_heads", of_heads[head // 4]), head % 4)

    def _add_cached_values(self) -> None:
        """A few consecutive keys at a time."""
        work, kernel, facts, vectors = self.work, self.work.kernel, self.work.facts, self.work.options.score_vectors
        turn_keys = self.value_groups * self.values_at_once
        with kernel.loop("turn", (self.cached + turn_keys - 1) // turn_keys) as turn:
            first = kernel.let("first", turn * turn_keys + self.value_group * self.values_at_once)
            # Keys beyond the last have weight 0; the last value is read for them.
            keys = [
                kernel.let("value_key", self.start + minimum(first + i, self.cached - 1))
                for i in range(self.values_at_once)
            ]
            page = kernel.let("value_page", work.page_of(keys[0]))
            block = self.part * self.value_vectors // facts.block_vectors
            for i, key in enumerate(keys):
                self.value_blocks[i] = work.pages.block(page, 1, work.kv_head, key % facts.page_size, block)
            for i in range(self.values_at_once):
                value = work.pages.part_of(self.value_blocks[i], self.part, self.value_vectors)
                self._add_value(self.shared, (first + i) * vectors, value)

    def _key(self, u: int) -> Scalar:
        """The u-th of the thread's keys, counted from the tile's first."""
        return u * self.work.options.threads + self.work.thread

    def _finish_score(self, u: int, h: int, scale: Scalar | None) -> None:
        """A cached key's score, the new key's, or the lowest if there is no such key or the row does not see it."""
        work, at = self.work, u * self.work.options.heads + h
        score = self.scores[at] * scale if scale is not None else self.scores[at]
        score = capped(work.kernel, self.facts, score)
        key, lowest = self._key(u), number(LOWEST, "float32")
        if work.first_visible is not None:
            score = select(self.start + key >= work.first_visible, score, lowest)
        beyond = lowest if self.new is None else select(key < self.count, self.new.scores[h], lowest)
        self.scores[at] = select(key < self.cached, score, beyond)

    def _store_weights(self, u: int, v: int, weights: Scalar) -> None:
        work, kernel, key = self.work, self.work.kernel, self._key(u)
        self.totals[v] = self.totals[v] + weights
        cached_weights = weights * splat(self.value_scales[u]) if work.pages.quantized else weights
        if self.new is not None:
            # The new token's value is not read from its page.
            with kernel.when(key == self.cached):
                self.new_weights[v] = weights
            cached_weights = select(key == self.cached, number(0, "float32x4"), cached_weights)
        self.shared[key * work.options.score_vectors + v] = cached_weights

    def _add_value(self, weights: Array, first: Scalar | int, value: list[Scalar]) -> None:
        kernel, options = self.work.kernel, self.work.options
        value = [kernel.let("value", each) for each in value]
        for v in range(options.score_vectors):
            four = kernel.let("four", weights[first + v])
            for h in range(v * 4, min(v * 4 + 4, options.heads)):
                for i in range(self.value_vectors):
                    at = h * self.value_vectors + i
                    self.result[at] = self.result[at] + splat(lane_of(four, h % 4), self.work.facts.lanes) * value[i]

    def _sum_weights(self) -> None:
        """Store each head's sum of weights in ``correction``."""
        work, kernel, vectors = self.work, self.work.kernel, self.work.options.score_vectors
        kernel.barrier()
        for v in range(vectors):
            self.shared[work.thread * vectors + v] = self.totals[v]

        def add(one: Scalar, other: Scalar) -> Scalar:
            return one + other

        self.folds.fold(self.shared, add)
        with kernel.when(work.thread < vectors):
            self.correction[work.thread] = self.folds.folded(add)

    def _gather_results(self) -> int:
        """Sum the results of the groups of threads in ``shared``, in several rounds if there are too many. Returns the
        number of sums still to be added.
        """
        work, kernel, vectors, lanes = self.work, self.work.kernel, self.work.facts.vectors, self.work.facts.lanes
        size, kept = work.options.heads * vectors, self.value_groups
        while kept * size > work.options.work_size(work.facts):
            kept = -(-kept // 2)
        own = [(h, i) for h in range(work.options.heads) for i in range(self.value_vectors)]
        indices = [(h * self.value_vectors + i, h * vectors + self.part * self.value_vectors + i) for h, i in own]
        for first in range(0, self.value_groups, kept):
            last = min(first + kept, self.value_groups)
            with kernel.when(all_of(self.value_group >= first, self.value_group < last)):
                for mine, other in indices:
                    at, own_sum = (self.value_group - first) * size + other, as_four(self.result[mine], lanes)
                    self.shared[at] = self.shared[at] + own_sum if first else own_sum
            kernel.barrier()
        return kept


def added_dot(sum_: Scalar, one: Scalar, other: Scalar, lanes: int) -> Scalar:
    """``sum_`` and the dot product, lane by lane, so that a device may fuse each product into the sum."""
    for lane in range(lanes):
        sum_ = sum_ + lane_of(one, lane) * lane_of(other, lane)
    return sum_


def four_heads(scores: Array, first: int, v: int, heads: int) -> Scalar:
    """A vector of a key's scores for four heads; beyond the last head, the lowest."""
    return vector(*(scores[first + h] if h < heads else number(LOWEST, "float32") for h in range(v * 4, v * 4 + 4)))
