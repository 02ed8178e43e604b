"""ragged_attention with AMX.

As in `ragged_attention.py`, the first phase writes queries, keys and values to scratch, here as sums of bfloat16
(`bf16_planes.py`), in pages of 32 keys of one text. The second phase is that of `attention.py`, with 16 queries a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

from ...ir.expr import Expr
from ...ir.heads import ATTENDED, Heads, Scores
from ..builder import Kernel, Scalar, address_of, all_of, minimum, number, reinterpret, select
from ..vectors import floats, ramp, with_lanes
from .attention import attend_tiles
from .bf16_planes import halves_of, words_of
from .builder import Isa, round_up_quotient
from .key_block import BLOCK, BlockScores, Range
from .key_products import Queries
from .matrix_registers import LEFT, RIGHT, ROW_BYTES, ROWS, SUMS, clear, configure, load, multiply, release, store
from .ragged_attention import RaggedArguments, transposed

# The columns of a left side, and the keys of a page.
DEPTH = 32
PAIRS = DEPTH // 2
LANES = 16


def matrix_attends(heads: Heads, scores: Scores) -> bool:
    """Whether `matrix_attention` computes this attention."""
    plain = not scores.bends and not scores.sinks
    return plain and heads.head_dim % DEPTH == 0 and ROWS % heads.group == 0


def matrix_attention(
    name: str, *, isa: Isa, heads: Heads, scores: Scores, planes: int, y_in_scratch: bool = False
) -> Kernel:
    """``planes``: the number of bfloat16 in a sum. ``y_in_scratch``: the result is the scratch buffer `ATTENDED`."""
    arguments = MatrixArguments(name, isa, heads, scores, planes, ATTENDED if y_in_scratch else None)
    arguments.prepare_queries()
    return attend_tiles(arguments, ROWS // heads.group)


class MatrixArguments(RaggedArguments):
    def __init__(self, name: str, isa: Isa, heads: Heads, scores: Scores, planes: int, result: str | None) -> None:
        self._planes = planes
        super().__init__(name, isa, heads, scores, result=result)

    def _declare_pages(self) -> None:
        heads, planes, kernel = self.heads, self._planes, self.kernel
        depths = heads.head_dim // DEPTH
        # A left side may begin with the last query.
        rows: Expr = ["add", heads.rows, ROWS]
        of_head = self._num_pages(), heads.num_kv_heads
        self.queries = kernel.scratch(
            "q", (heads.num_kv_heads, rows, heads.group, depths, planes, PAIRS), "uint32", write=True
        )
        self.keys = kernel.scratch("keys", (*of_head, DEPTH // ROWS, depths, planes, PAIRS, ROWS), "uint32", write=True)
        self.values = kernel.scratch(
            "values", (*of_head, planes, heads.head_dim // ROWS, PAIRS, ROWS), "uint32", write=True
        )

    @property
    def page_keys(self) -> int:
        return DEPTH

    def prepare_queries(self) -> None:
        """Each task processes the queries of one row, and the keys and values of its page for a part of the heads."""
        kernel, heads = self.kernel, self.heads
        with self._each_row() as at:
            with kernel.loop("kv_head", heads.num_kv_heads) as kv_head:
                for of_group in range(heads.group):
                    self._write_query(at.row, kv_head, of_group)
            with self._heads_of_page(at) as kv_head:
                self._write_keys(kv_head, at.page, at.first_row, at.stop - 1)
                self._write_values(kv_head, at.page, at.first_row, at.stop)

    def _write_query(self, row: Scalar, kv_head: Scalar, of_group: int) -> None:
        head = kv_head * self.heads.group + of_group
        for first in range(0, self.heads.head_dim, LANES):
            scaled = self._load(row, head, first, LANES) * number(self._scores.scale, floats(LANES))
            depth, word = first // DEPTH, first % DEPTH // 2
            for plane, halves in enumerate(halves_of(self.kernel, self.kernel.let("query", scaled), self._planes)):
                here = kv_head, row, of_group, depth, plane, ramp(word, LANES // 2)
                self.queries[here] = reinterpret(halves, with_lanes("uint32", LANES // 2))

    def _write_keys(self, kv_head: Scalar, page: Scalar, first_row: Scalar, last_row: Scalar) -> None:
        """Pairs of a head's elements, of 16 keys each. Rows beyond the last one are copies of it, which no query
        sees.
        """
        kernel = self.kernel
        head = kernel.let("key_head", kv_head + self.heads.num_heads)
        with kernel.loop("half", DEPTH // ROWS) as half:
            rows = [kernel.let("key_row", minimum(first_row + half * ROWS + i, last_row)) for i in range(ROWS)]
            for first in range(0, self.heads.head_dim, LANES):
                columns = transposed(kernel, [kernel.let("key", self._load(row, head, first, LANES)) for row in rows])
                for pair in range(LANES // 2):
                    words = words_of(kernel, columns[2 * pair], columns[2 * pair + 1], self._planes)
                    for plane, each in enumerate(words):
                        place = half, first // DEPTH, plane, first % DEPTH // 2 + pair, ramp(0, ROWS)
                        self.keys[(page, kv_head, *place)] = each

    def _write_values(self, kv_head: Scalar, page: Scalar, first_row: Scalar, stop: Scalar) -> None:
        """Pairs of rows, of 16 elements each. Rows beyond the last one are zeros, because their weights are."""
        kernel = self.kernel
        head = kernel.let("value_head", kv_head + self.heads.num_heads + self.heads.num_kv_heads)
        with kernel.loop("pair", PAIRS) as pair:
            rows = [kernel.let("value_row", first_row + 2 * pair + odd) for odd in range(2)]
            for first in range(0, self.heads.head_dim, LANES):
                loaded = [self._load(minimum(row, stop - 1), head, first, LANES) for row in rows]
                even, odd = (
                    kernel.let("value", select(row < stop, value, number(0, floats(LANES))))
                    for row, value in zip(rows, loaded, strict=True)
                )
                for plane, words in enumerate(words_of(kernel, even, odd, self._planes)):
                    self.values[page, kv_head, plane, first // ROWS, pair, ramp(0, ROWS)] = words

    def hold(self, queries: Queries) -> None: ...

    def key_block(self, count: int) -> BlockScores:
        return MatrixKeyBlock(self, self._scores, self._planes, count)


class MatrixKeyBlock(BlockScores):
    """A block of keys whose products are those of matrices, for up to 16 queries."""

    def __init__(self, arguments: MatrixArguments, scores: Scores, planes: int, count: int) -> None:
        assert count <= ROWS
        super().__init__(arguments.kernel, arguments.heads, scores, count, ROWS)
        self._arguments, self._planes = arguments, planes
        self._weights = self._kernel.local("weights", BLOCK // DEPTH * planes * ROWS * PAIRS, "uint32")

    def compute(self, queries: Queries, kv_head: Scalar, first_page: Scalar, block: Scalar, keys: Range) -> None:
        kernel = self._kernel
        first = kernel.let("first", first_page + block * (BLOCK // DEPTH))
        pages = Range(keys.start_in(DEPTH), kernel.let("last_page", round_up_quotient(keys.stop, DEPTH)))
        configure(kernel)
        self._score(queries[0][0], kv_head, first, pages)
        with kernel.loop("query", self.count) as query:
            self._weigh(query, keys)
            self._store_weights(query, pages, keys)
        for part in range(0, self._heads.head_dim // ROWS, len(SUMS)):
            self._add_values(range(part, min(part + len(SUMS), self._heads.head_dim // ROWS)), kv_head, first, pages)
        release()

    @contextmanager
    def _each_page(self, pages: Range, at_once: int = 1) -> Iterator[Scalar]:
        with self._kernel.loop("page", round_up_quotient(pages.stop - pages.start, at_once)) as page:
            yield pages.start + page * at_once

    def _score(self, row: Scalar, kv_head: Scalar, first: Scalar, pages: Range) -> None:
        """Two pages at a time, whose sums are in four registers. A page beyond the last one repeats it."""
        kernel, planes, arguments = self._kernel, self._planes, self._arguments
        depths = self._heads.head_dim // DEPTH
        with self._each_page(pages, 2) as some:
            here = [kernel.let("page", minimum(some + i, pages.stop - 1)) for i in range(2)]
            tiles = list(product(here, range(DEPTH // ROWS)))
            for index in range(len(tiles)):
                clear(SUMS[index])
            for depth, plane in product(range(depths), range(planes)):
                query = address_of(arguments.queries, kv_head, row, 0, depth, plane, 0)
                load(LEFT[0], query, depths * planes * ROW_BYTES)
                for of_key, (index, (page, half)) in product(range(planes - plane), enumerate(tiles)):
                    right = RIGHT[index % 2]
                    load(right, address_of(arguments.keys, first + page, kv_head, half, depth, of_key, 0, 0))
                    multiply(SUMS[index], LEFT[0], right)
            for index, (page, half) in enumerate(tiles):
                store(SUMS[index], address_of(self._scores, page * DEPTH + half * ROWS), BLOCK * 4)

    def _store_weights(self, query: Scalar, pages: Range, keys: Range) -> None:
        """A query's weights as a row of a left side for each page; zeros in vectors that have none."""
        kernel = self._kernel
        vectors = Range(keys.start_in(LANES), kernel.let("vectors", round_up_quotient(keys.stop, LANES)))
        with self._each_page(pages) as page:
            for half in range(DEPTH // LANES):
                index = kernel.let("index", page * (DEPTH // LANES) + half)
                weighs = all_of(index < vectors.stop, True if isinstance(keys.start, int) else index >= vectors.start)
                stored = self._scores[ramp(query * BLOCK + index * LANES, LANES)]
                weight = kernel.let("weight", select(weighs, stored, number(0, floats(LANES))))
                for plane, halves in enumerate(self._stored(weight)):
                    place = self._weights_at(page, plane) + query * PAIRS + half * LANES // 2
                    self._weights[ramp(place, LANES // 2)] = reinterpret(halves, with_lanes("uint32", LANES // 2))

    def _stored(self, weight: Scalar) -> list[Scalar]:
        """The planes of a vector of weights, as 16-bit integers."""
        return halves_of(self._kernel, weight, self._planes)

    def _weights_at(self, page: Scalar, plane: int) -> Scalar:
        return (page * self._planes + plane) * (ROWS * PAIRS)

    def _add_values(self, parts: range, kv_head: Scalar, first: Scalar, pages: Range) -> None:
        """The weighted sums of 16 elements of the values for each of ``parts``."""
        planes = self._planes
        for index in range(len(parts)):
            clear(SUMS[index])
        with self._each_page(pages) as page:
            for plane in range(planes):
                load(LEFT[0], address_of(self._weights, self._weights_at(page, plane)))
                for of_value, (index, part) in product(range(planes - plane), enumerate(parts)):
                    right = RIGHT[index % 2]
                    load(right, address_of(self._arguments.values, first + page, kv_head, of_value, part, 0, 0))
                    multiply(SUMS[index], LEFT[0], right)
        for index, part in enumerate(parts):
            store(SUMS[index], address_of(self.sums, part * ROWS), self._heads.head_dim * 4)
