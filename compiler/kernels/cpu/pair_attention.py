"""ragged_attention with AVX-512 VNNI, whose instruction multiplies pairs of 16-bit integers and adds both products.

As in `matrix_attention.py`, the first phase writes queries, keys and values to scratch as pairs, here integers with a
scale for each query, each key, and each column of a page's values. The second phase has 16 queries a tile. Sums of
integers are exact and fit in 32 bits: those of a head's elements, and those of a page's keys. Weights, which are at
most 1, have 15 bits and a sign, values 11 and a sign: as many as float16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import product
from math import isqrt
from operator import add

from ...ir.expr import Expr
from ...ir.heads import ATTENDED, Heads, Scores
from ..builder import Kernel, Scalar, cast, maximum, minimum, number, reinterpret, select
from ..vectors import floats, largest_of_lanes, ramp, splat, sum_of_lanes, with_lanes
from .attention import attend_tiles
from .builder import Isa, round_up_quotient
from .key_block import BLOCK, BlockScores, Range
from .key_products import Queries
from .math import falling_exp, fused, intrinsic, rounded
from .matrix_attention import DEPTH, LANES, PAIRS, MatrixArguments, MatrixKeyBlock
from .matrix_registers import ROWS
from .ragged_attention import transposed

# The largest codes of weights and values: their products for a page's keys add up to less than 2^31.
LARGEST_WEIGHT, LARGEST_VALUE = 32767, 2047
# The queries and the vectors of sums that registers hold at once.
QUERIES, VECTORS = 4, 4
# The vectors of exponentials that are computed at once. With all 16 of a block, which took as long, LLVM needed 2.2 GB
# and 17 s for the kernel instead of 0.3 GB and 1 s.
SIDE_BY_SIDE = 8
MAGNITUDE = 0x7FFFFFFF
INTEGERS, WORDS = with_lanes("int32", LANES), with_lanes("uint32", LANES)


def pair_attention(name: str, *, isa: Isa, heads: Heads, scores: Scores, y_in_scratch: bool = False) -> Kernel:
    """For what `matrix_attends` accepts. ``y_in_scratch``: the result is the scratch buffer `ATTENDED`."""
    assert isa.lanes == LANES
    arguments = PairArguments(name, isa, heads, scores, 1, ATTENDED if y_in_scratch else None)
    arguments.prepare_queries()
    return attend_tiles(arguments, ROWS // heads.group)


class PairArguments(MatrixArguments):
    def _declare_pages(self) -> None:
        super()._declare_pages()
        heads, scratch = self.heads, self.kernel.scratch
        of_head = self._num_pages(), heads.num_kv_heads
        rows: tuple[Expr, ...] = (heads.num_kv_heads, ["add", heads.rows, ROWS], heads.group)
        self.query_scales = scratch("query_scales", rows, "float32", write=True)
        self.key_scales = scratch("key_scales", (*of_head, DEPTH // ROWS, ROWS), "float32", write=True)
        self.value_scales = scratch("value_scales", (*of_head, heads.head_dim), "float32", write=True)
        # The largest code of a query's and of a key's element.
        self.largest_code = isqrt((2**31 - 1) // heads.head_dim)

    def _write_query(self, row: Scalar, kv_head: Scalar, of_group: int) -> None:
        head, kernel = kv_head * self.heads.group + of_group, self.kernel
        scale, starts = number(self._scores.scale, floats(LANES)), range(0, self.heads.head_dim, LANES)
        query = [kernel.let("query", self._load(row, head, first, LANES) * scale) for first in starts]
        highest = reduce(maximum, (intrinsic("uint32", "vector.reduce.umax", magnitudes(each)) for each in query))
        largest = kernel.let("largest", reinterpret(highest, "float32"))
        factor = kernel.let("factor", factor_of(largest, self.largest_code))
        for first, elements in zip(starts, query, strict=True):
            codes = cast(codes_of(elements, splat(factor, LANES)), with_lanes("int16", LANES))
            here = kv_head, row, of_group, first // DEPTH, 0, ramp(first % DEPTH // 2, LANES // 2)
            self.queries[here] = reinterpret(codes, with_lanes("uint32", LANES // 2))
        self.query_scales[kv_head, row, of_group] = largest * number(1 / self.largest_code, "float32")

    def _write_keys(self, kv_head: Scalar, page: Scalar, first_row: Scalar, last_row: Scalar) -> None:
        kernel, head_dim = self.kernel, self.heads.head_dim
        head = kernel.let("key_head", kv_head + self.heads.num_heads)
        columns = kernel.local("columns", head_dim, floats(LANES))
        with kernel.loop("half", DEPTH // ROWS) as half:
            rows = [kernel.let("key_row", minimum(first_row + half * ROWS + i, last_row)) for i in range(ROWS)]
            highest = kernel.local("highest", 1, WORDS, fill=0)
            with kernel.loop("part", head_dim // LANES) as part:
                loaded = [kernel.let("key", self._load(row, head, part * LANES, LANES)) for row in rows]
                for i, column in enumerate(transposed(kernel, loaded)):
                    columns[part * LANES + i] = column
                    highest[0] = maximum(highest[0], magnitudes(column))
            largest = kernel.let("largest", reinterpret(highest[0], floats(LANES)))
            factors = kernel.let("factors", factor_of(largest, self.largest_code))
            for depth in range(head_dim // DEPTH):
                with kernel.loop("pair", PAIRS) as pair:
                    even, odd = (codes_of(columns[depth * DEPTH + pair * 2 + i], factors) for i in range(2))
                    self.keys[page, kv_head, half, depth, 0, pair, ramp(0, ROWS)] = pairs_of(even, odd)
            scales = largest * number(1 / self.largest_code, floats(LANES))
            self.key_scales[page, kv_head, half, ramp(0, ROWS)] = scales

    def _write_values(self, kv_head: Scalar, page: Scalar, first_row: Scalar, stop: Scalar) -> None:
        kernel, parts = self.kernel, self.heads.head_dim // ROWS
        head = kernel.let("value_head", kv_head + self.heads.num_heads + self.heads.num_kv_heads)
        highest = kernel.local("highest_value", parts, WORDS, fill=0)
        with kernel.loop("row_of_page", minimum(stop - first_row, DEPTH)) as row:
            for part in range(parts):
                value = self._load(first_row + row, head, part * ROWS, LANES)
                highest[part] = maximum(highest[part], magnitudes(value))
        largest = [kernel.let("largest", reinterpret(highest[part], floats(LANES))) for part in range(parts)]
        factors = [kernel.let("factors", factor_of(each, LARGEST_VALUE)) for each in largest]
        with kernel.loop("pair", PAIRS) as pair:
            rows = [kernel.let("value_row", first_row + 2 * pair + odd) for odd in range(2)]
            for part in range(parts):
                # Rows beyond the last one are zeros, because their weights are.
                loaded = [self._load(minimum(row, stop - 1), head, part * ROWS, LANES) for row in rows]
                even, odd = (
                    codes_of(select(row < stop, value, number(0, floats(LANES))), factors[part])
                    for row, value in zip(rows, loaded, strict=True)
                )
                self.values[page, kv_head, 0, part, pair, ramp(0, ROWS)] = pairs_of(even, odd)
        for part in range(parts):
            scales = largest[part] * number(1 / (LARGEST_VALUE * LARGEST_WEIGHT), floats(LANES))
            self.value_scales[page, kv_head, ramp(part * ROWS, ROWS)] = scales

    def key_block(self, count: int) -> BlockScores:
        return PairKeyBlock(self, self._scores, count)


class PairKeyBlock(MatrixKeyBlock):
    """A block of keys whose products are those of pairs, for up to 16 queries."""

    def __init__(self, arguments: PairArguments, scores: Scores, count: int) -> None:
        super().__init__(arguments, scores, 1, count)
        self._pairs = arguments

    def compute(self, queries: Queries, kv_head: Scalar, first_page: Scalar, block: Scalar, keys: Range) -> None:
        kernel = self._kernel
        first = kernel.let("first", first_page + block * (BLOCK // DEPTH))
        pages = Range(keys.start_in(DEPTH), kernel.let("last_page", round_up_quotient(keys.stop, DEPTH)))
        self._score(queries[0][0], kv_head, first, pages)
        with kernel.loop("query", self.count) as query:
            if self.starts is None:
                # Of the queries, the first one sees the fewest keys.
                seen = kernel.let("seen", minimum(self.lengths[0], keys.stop))
                with kernel.when(seen == BLOCK):
                    self._weigh_all(query)
            with kernel.when(True if self.starts is not None else seen < BLOCK):
                self._weigh(query, keys)
                self._store_weights(query, pages, keys)
        self._add_all_values(kv_head, first, pages)

    def _groups(self) -> list[range]:
        return [range(first, min(first + QUERIES, self.count)) for first in range(0, self.count, QUERIES)]

    def _score(self, row: Scalar, kv_head: Scalar, first: Scalar, pages: Range) -> None:
        """Two pages at a time; a page beyond the last one repeats it."""
        kernel, arguments, group = self._kernel, self._pairs, self._heads.group
        with self._each_page(pages, VECTORS * ROWS // DEPTH) as some:
            here = [kernel.let("page", minimum(some + i, pages.stop - 1)) for i in range(VECTORS * ROWS // DEPTH)]
            vectors = list(product(here, range(DEPTH // ROWS)))
            scales = [
                kernel.let("scales", arguments.key_scales[first + page, kv_head, half, ramp(0, ROWS)])
                for page, half in vectors
            ]
            for own in self._groups():
                queries = [(kv_head, row + i // group, i % group) for i in own]
                sums = kernel.local("pair_sums", len(own) * len(vectors), INTEGERS, fill=0)
                for depth in range(self._heads.head_dim // DEPTH):
                    with kernel.loop("pair", PAIRS) as pair:
                        keys = [
                            kernel.let(
                                "key", arguments.keys[first + page, kv_head, half, depth, 0, pair, ramp(0, ROWS)]
                            )
                            for page, half in vectors
                        ]
                        for i, query in enumerate(queries):
                            word = kernel.let("word", splat(arguments.queries[(*query, depth, 0, pair)], LANES))
                            for at, key in enumerate(keys):
                                place = i * len(vectors) + at
                                sums[place] = multiplied(sums[place], key, word)
                for (i, query), (at, (page, half)) in product(zip(own, queries, strict=True), enumerate(vectors)):
                    scale = scales[at] * splat(arguments.query_scales[query], LANES)
                    score = cast(sums[(i - own.start) * len(vectors) + at], floats(LANES)) * scale
                    self._scores[ramp(i * BLOCK + page * DEPTH + half * ROWS, ROWS)] = score

    def _weigh_all(self, query: Scalar) -> None:
        """Turn the scores of a query with all keys of a block into weights, as many vectors side by side as registers
        hold.
        """
        kernel, starts, size = self._kernel, range(0, BLOCK, LANES), SIDE_BY_SIDE * LANES
        scores = [kernel.let("score", self._scores[ramp(query * BLOCK + start, LANES)]) for start in starts]
        largest = kernel.let("largest", largest_of_lanes(kernel.let("lanes", in_pairs(scores, maximum))))
        self.largest[query] = largest
        totals = kernel.local("totals", BLOCK // size, floats(LANES))
        with kernel.loop("part", BLOCK // size) as part:
            weights = []
            for start in starts[:SIDE_BY_SIDE]:
                score = self._scores[ramp(query * BLOCK + part * size + start, LANES)]
                weights.append(kernel.let("weight", falling_exp(score - splat(largest, LANES))))
            totals[part] = in_pairs(weights, add)
            for start, weight in zip(starts[:SIDE_BY_SIDE], weights, strict=True):
                page = part * (size // DEPTH) + start // DEPTH
                place = self._weights_at(page, 0) + query * PAIRS + start % DEPTH // 2
                (codes,) = self._stored(weight)
                self._weights[ramp(place, LANES // 2)] = reinterpret(codes, with_lanes("uint32", LANES // 2))
        total = in_pairs([totals[part] for part in range(BLOCK // size)], add)
        self.total[query] = sum_of_lanes(kernel.let("lanes", total))

    def _stored(self, weight: Scalar) -> list[Scalar]:
        codes = codes_of(weight, number(LARGEST_WEIGHT, floats(LANES)))
        return [cast(codes, with_lanes("int16", LANES))]

    def _add_all_values(self, kv_head: Scalar, first: Scalar, pages: Range) -> None:
        kernel, head_dim, values = self._kernel, self._heads.head_dim, self._pairs.values
        with kernel.loop("vector", self.count * head_dim // ROWS) as vector:
            self.sums[ramp(vector * ROWS, ROWS)] = number(0, floats(ROWS))
        with self._each_page(pages) as page:
            for part, own in product(range(0, head_dim // ROWS, VECTORS), self._groups()):
                parts = range(part, min(part + VECTORS, head_dim // ROWS))
                sums = kernel.local("pair_sums", len(own) * len(parts), INTEGERS, fill=0)
                with kernel.loop("pair", PAIRS) as pair:
                    loaded = [
                        kernel.let("value", values[first + page, kv_head, 0, each, pair, ramp(0, ROWS)])
                        for each in parts
                    ]
                    for i, query in enumerate(own):
                        place = self._weights_at(page, 0) + query * PAIRS + pair
                        word = kernel.let("word", splat(self._weights[place], LANES))
                        for at, value in enumerate(loaded):
                            sums[i * len(parts) + at] = multiplied(sums[i * len(parts) + at], value, word)
                scales = [
                    kernel.let("scales", self._pairs.value_scales[first + page, kv_head, ramp(each * ROWS, ROWS)])
                    for each in parts
                ]
                for (i, query), (at, each) in product(enumerate(own), enumerate(parts)):
                    here = ramp(query * head_dim + each * ROWS, ROWS)
                    self.sums[here] = fused(cast(sums[i * len(parts) + at], floats(ROWS)), scales[at], self.sums[here])


def in_pairs(values: list[Scalar], combine: Callable[[Scalar, Scalar], Scalar]) -> Scalar:
    """The combination of all values, whose number is a power of two, as a tree."""
    while len(values) > 1:
        values = [combine(one, other) for one, other in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def multiplied(total: Scalar, pairs: Scalar, word: Scalar) -> Scalar:
    """A vector of sums, with the products of a vector of pairs and the pair in each lane of another."""
    short = with_lanes("int16", 2 * LANES)
    operands = reinterpret(pairs, short), reinterpret(word, short)
    return intrinsic(INTEGERS, "x86.avx512.vpdpwssd.512", total, *operands)


def magnitudes(x: Scalar) -> Scalar:
    """The bits of magnitudes, whose order is that of the numbers. Those of a NaN are larger than those of every
    number, so a NaN reaches the scale.
    """
    return reinterpret(x, WORDS) & number(MAGNITUDE, WORDS)


def factor_of(largest: Scalar, code: int) -> Scalar:
    """What makes codes of numbers up to ``largest``, whose code is the largest."""
    dtype = str(largest.ty)
    return select(largest > number(0, dtype), number(code, dtype) / largest, number(0, dtype))


def codes_of(x: Scalar, factor: Scalar) -> Scalar:
    return cast(rounded(x * factor), INTEGERS)


def pairs_of(even: Scalar, odd: Scalar) -> Scalar:
    """Words of two codes: ``even`` in their lower halves."""
    words = even & number(0xFFFF, INTEGERS) | odd << number(16, INTEGERS)
    return reinterpret(words, WORDS)
