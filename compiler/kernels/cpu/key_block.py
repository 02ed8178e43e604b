"""One block of keys of an attention. Decoding and prefill share this part, so that both compute identical results.

The keys of a sequence form blocks of BLOCK, counted from position 0. For each query, a block computes the scores, each
as one chain of products over the head's elements or as an exact sum of integers (`key_products.py`); the largest score;
the weights exp(score - largest); the sum of weights, as a vector over the keys; and the weighted values, as one chain
over the keys. Blocks are then merged in order (Milakov & Gimelshein 2018). A key that a query does not see has weight
0, so neither it nor a block of such keys changes a sum. Values before the first visible key of all queries are not
read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...ir.heads import Heads, Scores
from ..builder import Array, Scalar, cast, maximum, minimum, number, select, truncated_quotient
from ..vectors import floats, largest_of_lanes, like, ramp, splat, sum_of_lanes
from .builder import CpuKernelBuilder, Isa, pieces, round_up_quotient
from .key_products import FloatProducts, KeyProducts, Queries
from .math import falling_exp, fused, tanh
from .pages import Pages
from .rows import LANES

# The keys of a block, a multiple of the page size.
BLOCK = 256
# The fewest queries whose sums hide the latency of an addition.
SMALLEST_GROUP = 4
LINE_BYTES = 64
# Represents minus infinity: exp(LOWEST - x) is 0 for every x that a score can have.
LOWEST = -3.0e38


@dataclass(frozen=True, slots=True)
class Range:
    """Keys [start, stop) of a block. ``start`` is the number 0 if there is no window."""

    start: Scalar | int
    stop: Scalar

    def start_in(self, size: int) -> Scalar | int:
        """The index of the piece of ``size`` keys that holds the first one."""
        return 0 if isinstance(self.start, int) else truncated_quotient(self.start, size)


class DistanceBias:
    """The biases of scores by the distance of key and row; see `ops.attention.distance_biases`."""

    def __init__(self, kernel: CpuKernelBuilder, heads: Heads, scores: Scores, positions: Array) -> None:
        self._distances, self._positions = scores.distances, positions
        self._bias = kernel.buffer("distance_bias", (heads.num_heads * scores.distances,), "float32")

    def of(self, row: Scalar, head: Scalar, first_key: Scalar, lanes: int) -> Scalar:
        """Those of a row with neighbouring keys, which may be some that fill up a page."""
        none = head * self._distances + self._distances // 2
        return self._bias[ramp(none + first_key - self._positions[row], lanes)]


class DistanceHeads:
    """The heads by which distances change scores; see `ops.attention.distance_products`. In scratch, those for keys are
    scaled, and elements of neighbouring distances are side by side.
    """

    def __init__(self, kernel: CpuKernelBuilder, heads: Heads, scores: Scores, positions: Array) -> None:
        self._kernel, self._heads, self._scores, self._positions = kernel, heads, scores, positions
        parts = 1 if scores.own_heads else 2
        self._factors = (1.0, scores.scale)[:parts]
        shape = (parts, heads.num_heads, scores.distance_heads, heads.head_dim)
        self._stored = kernel.buffer("distance_heads", shape, "float32")
        rows = None if scores.own_heads else kernel.buffer("distance_rows", (scores.distances,), "float32")
        self._rows: Array | None = rows
        shape = (parts, heads.num_heads, heads.head_dim, scores.distances)
        self._elements = kernel.scratch("distance_elements", shape, "float32", write=True)

    def prepare(self) -> None:
        """Write the scratch; each task processes one distance."""
        kernel, heads, last = self._kernel, self._heads, self._scores.distance_heads - 1
        with kernel.tasks("distance", self._scores.distances) as distance:
            found = distance if self._rows is None else cast(self._rows[distance], "int32")
            row = kernel.let("row", minimum(maximum(found, 0), last))
            with kernel.loop("head", heads.num_heads) as head, kernel.loop("element", heads.head_dim) as element:
                for part, factor in enumerate(self._factors):
                    value = self._stored[part, head, row, element] * number(factor, "float32")
                    self._elements[part, head, element, distance] = value

    def of(self, row: Scalar, head: Scalar, element: Scalar, first_key: Scalar, lanes: int) -> list[Scalar]:
        """An element of those for a row's query, and for the key unless there are none, of neighbouring keys."""
        distance = ramp(self._scores.distances // 2 + first_key - self._positions[row], lanes)
        return [self._elements[part, head, element, distance] for part in range(len(self._factors))]


class BlockScores(ABC):
    """The scores of ``count`` queries with a block's keys, and the values weighted by them. ``rows`` are allocated, at
    least ``count``.

    Before `compute`, set the range of keys that each query sees: those before ``lengths`` (count,), and with a
    window those from ``starts`` (count,) on; neither needs to lie within the block. `compute` leaves ``largest`` and
    ``total`` (count,), and ``sums`` (count, D).
    """

    def __init__(self, kernel: CpuKernelBuilder, heads: Heads, scores: Scores, count: int, rows: int) -> None:
        self._kernel, self._heads, self.count = kernel, heads, count
        self.lengths = kernel.local("lengths", count, "int32")
        self.starts = kernel.local("starts", count, "int32") if scores.window is not None else None
        self._scores = kernel.local("scores", rows * BLOCK, "float32")
        self.sums = kernel.local("sums", rows * heads.head_dim, "float32")
        self.largest = kernel.local("largest", count, "float32")
        self.total = kernel.local("total", count, "float32")

    @abstractmethod
    def compute(self, queries: Queries, kv_head: Scalar, first_page: Scalar, block: Scalar, keys: Range) -> None:
        """``queries`` are neighbours in their rows and heads. ``keys`` are the keys that any query sees, at least
        one.
        """

    def sums_of(self, i: Scalar) -> Callable[[int, int], Scalar]:
        """Vectors of a query's weighted values, by start and lanes."""
        return lambda start, lanes: self.sums[ramp(i * self._heads.head_dim + start, lanes)]

    def _weigh(self, i: Scalar, keys: Range) -> None:
        """Turn the scores of a query into weights."""
        kernel, lanes = self._kernel, min(LANES, self._heads.page_size)
        start = keys.start_in(lanes)
        vectors = kernel.let("vectors", round_up_quotient(keys.stop, lanes) - start)
        largest = kernel.local("largest_lanes", 1, f"float32x{lanes}", fill=LOWEST)
        with kernel.loop("part", vectors) as part:
            first = (start + part) * lanes
            seen = ramp(first, lanes) < splat(self.lengths[i], lanes)
            if self.starts is not None:
                seen = seen & (ramp(first, lanes) >= splat(self.starts[i], lanes))
            index = ramp(i * BLOCK + first, lanes)
            score = kernel.let("score", select(seen, self._scores[index], number(LOWEST, f"float32x{lanes}")))
            self._scores[index] = score
            largest[0] = maximum(largest[0], score)
        self.largest[i] = largest_of_lanes(largest[0])
        total = kernel.local("total_lanes", 1, f"float32x{lanes}", fill=0)
        with kernel.loop("part", vectors) as part:
            index = ramp(i * BLOCK + (start + part) * lanes, lanes)
            weight = kernel.let("weight", falling_exp(self._scores[index] - splat(self.largest[i], lanes)))
            self._scores[index] = weight
            total[0] = total[0] + weight
        self.total[i] = sum_of_lanes(total[0])


class KeyBlock(BlockScores):
    """The same with vectors, on pages. Without ``page_ids``, the pages of a sequence follow each other."""

    def __init__(
        self,
        kernel: CpuKernelBuilder,
        isa: Isa,
        heads: Heads,
        scores: Scores,
        pages: Pages,
        products: KeyProducts,
        page_ids: Array | None,
        count: int,
        bias: DistanceBias | None = None,
        by_distance: DistanceHeads | None = None,
    ) -> None:
        super().__init__(kernel, heads, scores, count, count)
        self._bias, self._by_distance = bias, by_distance
        self._isa, self._softcap = isa, scores.softcap
        self._pages, self._products, self._page_ids = pages, products, page_ids
        # A page's keys or values of one head have 2 or 4 KB, which is too short for the processor's own prefetcher, so
        # the next ones are prefetched here. Over 8,192 keys, a layer with 8-bit pages took 0.84 ms with
        # this and 1.6 ms without, and with float16 pages 1.2 and 1.6 ms; float32 was slower (Qwen3-0.6B's heads, one
        # thread of an AMD EPYC, Zen 5).
        self._asks_ahead = pages.quantized or heads.activation == "float16"
        self._lanes = min(isa.lanes, heads.page_size)

    def compute(self, queries: Queries, kv_head: Scalar, first_page: Scalar, block: Scalar, keys: Range) -> None:
        self._score(queries, kv_head, first_page, block, keys)
        if self._by_distance is not None:
            self._add_products(self._by_distance, queries, kv_head, first_page, block, keys)
        with self._kernel.loop("query", self.count) as query:
            self._weigh(query, keys)
        self._add_values(kv_head, first_page, block, keys)

    def _page(self, first_page: Scalar, block: Scalar, index: Scalar) -> Scalar:
        entry = first_page + block * (BLOCK // self._heads.page_size) + index
        return self._kernel.let("page", entry if self._page_ids is None else self._page_ids[entry])

    def _score(self, queries: Queries, kv_head: Scalar, first_page: Scalar, block: Scalar, keys: Range) -> None:
        kernel, page_size = self._kernel, self._heads.page_size
        at_once = max(1, min(4, self._chains() // (page_size // self._lanes)))
        num_pages = kernel.let("num_pages", round_up_quotient(keys.stop, page_size))
        start = keys.start_in(page_size)
        with kernel.loop("pages", round_up_quotient(num_pages - start, at_once)) as some:
            # Indices beyond the last page repeat it, and their scores are not stored.
            indices = [kernel.let("index", start + some * at_once + i) for i in range(at_once)]
            pages = [self._page(first_page, block, minimum(index, num_pages - 1)) for index in indices]
            following = [self._page(first_page, block, minimum(index + at_once, num_pages - 1)) for index in indices]
            # The vectors of a page's keys, as many at a time as registers hold sums.
            for group in self._groups():
                self._score_group(queries, group, kv_head, block, indices, num_pages, pages, following)

    def _score_group(
        self,
        queries: Queries,
        group: range,
        kv_head: Scalar,
        block: Scalar,
        indices: Sequence[Scalar],
        num_pages: Scalar,
        pages: Sequence[Scalar],
        following: Sequence[Scalar],
    ) -> None:
        """The scores of some queries with the keys of some pages."""
        kernel, lanes, page_size, products = self._kernel, self._lanes, self._heads.page_size, self._products
        own, count = [queries[i] for i in group], len(group)
        parts = page_size // lanes
        together = max(1, min(parts, self._chains()))
        for first_part in range(0, parts, together):
            vectors = [
                (p, part) for p in range(len(pages)) for part in range(first_part, min(first_part + together, parts))
            ]
            chains = kernel.local("chains", len(vectors) * count, products.dtype)
            for vector in range(len(vectors)):
                for i, total in enumerate(products.start(own)):
                    chains[vector * count + i] = total
            with kernel.loop("step", products.steps) as step:
                if first_part == 0 and group.start == 0:
                    self._prefetch(pages, following, kv_head, step)
                for vector, (p, part) in enumerate(vectors):
                    sums = [chains[vector * count + i] for i in range(count)]
                    for i, total in enumerate(products.add(sums, own, pages[p], kv_head, part * lanes, step)):
                        chains[vector * count + i] = total
            for vector, (p, part) in enumerate(vectors):
                sums = [chains[vector * count + i] for i in range(count)]
                with kernel.when(True if len(pages) == 1 else indices[p] < num_pages):
                    for i, score in enumerate(products.finish(sums, own, pages[p], kv_head, part * lanes)):
                        if self._by_distance is None:
                            score = self._capped(score)
                        key = indices[p] * page_size + part * lanes
                        if self._bias is not None:
                            row, head = own[i]
                            score = score + self._bias.of(row, head, block * BLOCK + key, lanes)
                        self._scores[ramp(group[i] * BLOCK + key, lanes)] = score

    def _add_products(
        self,
        by_distance: DistanceHeads,
        queries: Queries,
        kv_head: Scalar,
        first_page: Scalar,
        block: Scalar,
        keys: Range,
    ) -> None:
        """Add to the scores the products with the heads for distances. All queries are of one head."""
        kernel, lanes, page_size, products = self._kernel, self._lanes, self._heads.page_size, self._products
        assert isinstance(products, FloatProducts)
        rows, (_, head) = kernel.local("query_rows", self.count, "int32"), queries[0]
        for i, (row, _) in enumerate(queries):
            rows[i] = row
        start = keys.start_in(lanes)
        with (
            kernel.loop("query", self.count) as query,
            kernel.loop("part", round_up_quotient(keys.stop, lanes) - start) as part,
        ):
            row, key = kernel.let("query_row", rows[query]), kernel.let("first_key", (start + part) * lanes)
            page_index, in_page = kernel.split(key, page_size, ("page_index", "in_page"))
            page = self._page(first_page, block, page_index)
            total = kernel.local("total", 1, floats(lanes), fill=0)
            with kernel.loop("element", self._heads.head_dim) as element:
                for_query, *for_key = by_distance.of(row, head, element, block * BLOCK + key, lanes)
                mine = splat(products.query(row, head, element), lanes)
                product = fused(mine, for_query, total[0])
                for each in for_key:
                    product = fused(self._pages.key(page, kv_head, in_page, element, lanes), each, product)
                total[0] = product
            place = ramp(query * BLOCK + key, lanes)
            self._scores[place] = self._capped(self._scores[place] + total[0])

    def _capped(self, score: Scalar) -> Scalar:
        if self._softcap is None:
            return score
        score = self._kernel.let("score", score / like(score, self._softcap))
        return like(score, self._softcap) * tanh(score)

    def _prefetch(self, pages: Sequence[Scalar], following: Sequence[Scalar], kv_head: Scalar, step: Scalar) -> None:
        """Prefetch the keys of the ``following`` pages, and the values of ``pages`` if they are quantized."""
        if self._asks_ahead:
            for page in following:
                self._pages.prefetch(page, 0, kv_head, step * self._products.entries)
        if self._pages.quantized:
            for page in pages:
                self._pages.prefetch(page, 1, kv_head, step * self._products.entries)

    def _groups(self) -> list[range]:
        """The queries in groups for which registers hold at least two sum vectors each, so that a load of a query's
        factor serves two products.
        """
        size = self.count
        while size > SMALLEST_GROUP and self._isa.registers < 3 * size + 2:
            size = -(-size // 2)
        return [range(first, min(first + size, self.count)) for first in range(0, self.count, size)]

    def _chains(self, loaded: int = 1) -> int:
        """The number of sum vectors per query of a group that fit into registers, besides a vector for each query's
        factor and ``loaded`` values.
        """
        count = len(self._groups()[0])
        return max(1, (self._isa.registers - count - 1 - loaded) // count)

    def _add_values(self, kv_head: Scalar, first_page: Scalar, block: Scalar, keys: Range) -> None:
        """sums = weights @ values, for all queries and as many elements at a time as registers hold."""
        pages = self._pages
        entries = pieces(pages.width, self._isa.lanes)
        at_once = max(1, self._chains(pages.parts) // pages.parts)
        zeros = self._scale_weights(kv_head, first_page, block, keys) if pages.quantized else None
        for first in range(0, len(entries), at_once):
            for group in self._groups():
                self._add_entries(entries[first : first + at_once], group, kv_head, first_page, block, keys, zeros)

    def _add_entries(
        self,
        entries: Sequence[tuple[int, int]],
        group: range,
        kv_head: Scalar,
        first_page: Scalar,
        block: Scalar,
        keys: Range,
        zeros: Array | None,
    ) -> None:
        """The weighted sums of some entries of the values, for some queries."""
        kernel, page_size, pages, head_dim = self._kernel, self._heads.page_size, self._pages, self._heads.head_dim
        start_page = keys.start_in(page_size)
        sums = [
            [kernel.local("sum", len(group), floats(lanes), fill=0) for _ in range(pages.parts)] for _, lanes in entries
        ]
        num_pages = kernel.let("num_pages", round_up_quotient(keys.stop, page_size))
        with kernel.loop("page_offset", num_pages - start_page) as page_offset:
            page_index = start_page + page_offset
            page = self._page(first_page, block, page_index)
            next_page = self._page(first_page, block, minimum(page_index + 1, num_pages - 1))
            stop = minimum(keys.stop - page_index * page_size, page_size)
            start = 0 if self.starts is None else kernel.let("start", maximum(keys.start - page_index * page_size, 0))
            with kernel.loop("offset", stop - start) as offset:
                in_page = start + offset
                if self._asks_ahead and not pages.quantized:
                    for start in range(0, head_dim, LINE_BYTES // 2):
                        pages.prefetch(next_page, 1, kv_head, in_page * head_dim + start)
                weights = [self._scores[i * BLOCK + page_index * page_size + in_page] for i in group]
                weights = [kernel.let("weight", weight) for weight in weights]
                for of_entries, (start, lanes) in zip(sums, entries, strict=True):
                    loaded = pages.value(page, kv_head, in_page, start, lanes)
                    values = [kernel.let("value", value) for value in loaded]
                    for i, weight in enumerate(weights):
                        for each, value in zip(of_entries, values, strict=True):
                            each[i] = fused(splat(weight, lanes), value, each[i])
        for of_entries, (start, lanes) in zip(sums, entries, strict=True):
            for i, query in enumerate(group):
                for element, total in pages.in_order([each[i] for each in of_entries], start, lanes):
                    if zeros is not None and pages.zero:
                        total = total + splat(zeros[query], lanes)
                    self.sums[ramp(query * head_dim + element, lanes)] = total

    def _scale_weights(self, kv_head: Scalar, first_page: Scalar, block: Scalar, keys: Range) -> Array:
        """Multiply weights by the scales of values. Returns what the zeros of codes add to each query's sums."""
        kernel, page_size, lanes = self._kernel, self._heads.page_size, min(LANES, self._heads.page_size)
        start = keys.start_in(lanes)
        zeros = kernel.local("zeros", self.count, "float32")
        totals = kernel.local("zero_lanes", self.count, f"float32x{lanes}", fill=0)
        with kernel.loop("part", round_up_quotient(keys.stop, lanes) - start) as part:
            page_index, in_page = kernel.split((start + part) * lanes, page_size, ("page_index", "in_page"))
            page = self._page(first_page, block, page_index)
            scales = kernel.let("scales", self._pages.scales(page, 1, kv_head, in_page, lanes))
            for i in range(self.count):
                index = ramp(i * BLOCK + (start + part) * lanes, lanes)
                weight = kernel.let("weight", self._scores[index])
                # Scales of keys that no query sees may hold anything.
                unseen = weight == like(weight, 0)
                scaled = kernel.let("scaled", select(unseen, like(weight, 0), weight * scales))
                self._scores[index] = scaled
                totals[i] = totals[i] + scaled
        for i in range(self.count):
            zeros[i] = sum_of_lanes(totals[i]) * number(-self._pages.zero, "float32")
        return zeros


class Running:
    """The state of each query after some blocks: the largest score, the sum of weights, the weighted values.

    ``sinks`` are scores of a key without a value, one for each query.
    """

    def __init__(
        self, kernel: CpuKernelBuilder, isa: Isa, heads: Heads, count: int, sinks: Sequence[Scalar] = ()
    ) -> None:
        self._kernel, self._isa, self._heads = kernel, isa, heads
        self._largest = kernel.local("running_largest", count, "float32", fill=LOWEST)
        self._total = kernel.local("running_total", count, "float32", fill=0)
        self._sums = kernel.local("running_sums", count * heads.head_dim, "float32")
        with kernel.loop("query", count) as i:
            for start, lanes in pieces(heads.head_dim, isa.lanes):
                self._sums[ramp(i * heads.head_dim + start, lanes)] = number(0, floats(lanes))
        for index, sink in enumerate(sinks):
            self._largest[index] = sink
            self._total[index] = number(1, "float32")

    def merge(self, i: Scalar, largest: Scalar, total: Scalar, sums: Callable[[int, int], Scalar]) -> None:
        """Add the next block; ``sums`` gives a vector of its weighted values by start and lanes."""
        kernel, head_dim = self._kernel, self._heads.head_dim
        above = kernel.let("above", maximum(self._largest[i], largest))
        before, new = (
            kernel.let("before", falling_exp(self._largest[i] - above)),
            kernel.let("new", falling_exp(largest - above)),
        )
        self._largest[i] = above
        self._total[i] = fused(self._total[i], before, total * new)
        for start, lanes in pieces(head_dim, self._isa.lanes):
            columns = ramp(i * head_dim + start, lanes)
            wide_before, wide_new = (splat(each, lanes) for each in (before, new))
            self._sums[columns] = fused(self._sums[columns], wide_before, sums(start, lanes) * wide_new)

    def result(self, i: int, start: int, lanes: int) -> Scalar:
        """Elements of the attention's result."""
        total = splat(self._total[i], lanes)
        return self._sums[ramp(i * self._heads.head_dim + start, lanes)] / total
