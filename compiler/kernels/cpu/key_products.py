"""The dot products of queries with neighbouring keys, one key in each lane: of floats, or of integers if keys have 4
bits.

A sum of floats has one order and a sum of integers is exact, so every instruction set gives the same bits.
"""

from __future__ import annotations

from functools import reduce
from typing import Protocol, TypeAlias

from ...ir.heads import Heads
from ..builder import Array, Scalar, cast, maximum, number, reinterpret, select, sum_of
from ..packed import WeightFormat
from ..vectors import floats, ramp, splat, take_lanes, with_lanes
from .builder import CpuKernelBuilder, Isa, pieces
from .integer_dot import integer_dot
from .math import fused, intrinsic, rounded
from .pages import Pages
from .rows import LANES

# The row and the query head of each query.
Queries: TypeAlias = "list[tuple[Scalar, Scalar]]"
# The largest code of a query.
LARGEST = 32767
# The elements of a word in the order of its operands, which are pairs (`integer_dot.Dot.operands`).
# With more queries at once, copies of them are read.
HELD_QUERIES = 4
WORD, FIRST_OF_PAIRS, SECOND_OF_PAIRS = 8, (0, 1, 4, 5), (2, 3, 6, 7)


class KeyProducts(Protocol):
    """Products of prepared queries, which it holds in scratch "q", with keys. A key's products are added in ``steps``;
    a step reads ``entries`` entries of a page's keys. Sums are vectors of ``dtype``, one for each query.
    """

    steps: int
    entries: int
    dtype: str

    def store(self, row: Scalar, head: Scalar, query: Array) -> None:
        """Prepare a query (D,) float32."""

    def hold(self, queries: Queries) -> None:
        """Read the queries that all of the following calls are for."""

    def start(self, queries: Queries) -> list[Scalar]:
        """The sums before the first step."""

    def add(
        self, sums: list[Scalar], queries: Queries, page: Scalar, kv_head: Scalar, in_page: int, step: Scalar
    ) -> list[Scalar]:
        """The sums after a step, for the keys from ``in_page`` on."""

    def finish(self, sums: list[Scalar], queries: Queries, page: Scalar, kv_head: Scalar, in_page: int) -> list[Scalar]:
        """The dot products as float32."""


def key_products(kernel: CpuKernelBuilder, isa: Isa, heads: Heads, pages: Pages) -> KeyProducts:
    return (IntegerProducts if pages.parts > 1 else FloatProducts)(kernel, isa, heads, pages)


class FloatProducts:
    """One chain of products over the head's elements. Codes of 8 bits become floats."""

    def __init__(self, kernel: CpuKernelBuilder, isa: Isa, heads: Heads, pages: Pages) -> None:
        self._kernel, self._isa, self._heads, self._pages = kernel, isa, heads, pages
        self._q = kernel.scratch("q", (heads.rows, heads.num_heads, heads.head_dim), "float32", write=True)
        self._lanes = min(isa.lanes, heads.page_size)
        self.steps, self.entries, self.dtype = heads.head_dim, heads.page_size, floats(self._lanes)
        self._held: Array | None = None
        self._places: dict[int, int] = {}

    def hold(self, queries: Queries) -> None:
        """Copy them, so that a step reads all of them at constant distances: there are fewer registers for pointers
        than queries.
        """
        head_dim, self._held = self._heads.head_dim, None
        if len(queries) > HELD_QUERIES:
            self._places = {id(query): i * head_dim for i, query in enumerate(queries)}
            self._held = self._kernel.local("held", len(queries) * head_dim, "float32")
            for query in queries:
                for start, lanes in pieces(head_dim, self._isa.lanes):
                    here = ramp(self._places[id(query)] + start, lanes)
                    self._held[here] = self._q[(*query, ramp(start, lanes))]

    def store(self, row: Scalar, head: Scalar, query: Array) -> None:
        for start, lanes in pieces(self._heads.head_dim, self._isa.lanes):
            self._q[row, head, ramp(start, lanes)] = query[ramp(start, lanes)]

    def query(self, row: Scalar, head: Scalar, element: Scalar) -> Scalar:
        """An element of a scaled query."""
        return self._q[row, head, element]

    def start(self, queries: Queries) -> list[Scalar]:
        return [number(0, self.dtype) for _ in queries]

    def add(
        self, sums: list[Scalar], queries: Queries, page: Scalar, kv_head: Scalar, in_page: int, step: Scalar
    ) -> list[Scalar]:
        key = self._kernel.let("key", self._pages.key(page, kv_head, in_page, step, self._lanes))
        held = self._held
        found = [self._q[(*query, step)] if held is None else held[self._places[id(query)] + step] for query in queries]
        values = [splat(each, self._lanes) for each in found]
        return [fused(value, key, total) for value, total in zip(values, sums, strict=True)]

    def finish(
        self,
        sums: list[Scalar],
        queries: Queries,  # noqa: ARG002
        page: Scalar,
        kv_head: Scalar,
        in_page: int,
    ) -> list[Scalar]:
        if not self._pages.quantized:
            return sums
        scales = self._kernel.let("scales", self._pages.scales(page, 0, kv_head, in_page, self._lanes))
        return [total * scales for total in sums]


class IntegerProducts:
    """Queries are rounded to 16-bit integers with one scale each. A step multiplies the eight elements of a word.

    A query in scratch: its codes in the order of operands, two a word; then minus the sum of codes times the keys'
    zero, and the bits of the scale.
    """

    def __init__(self, kernel: CpuKernelBuilder, isa: Isa, heads: Heads, pages: Pages) -> None:
        assert heads.page_size % isa.lanes == 0, (heads, isa)
        self._kernel, self._heads, self._pages, self._lanes = kernel, heads, pages, isa.lanes
        self._words = heads.head_dim // 2
        self._q = kernel.scratch("q", (heads.rows, heads.num_heads, self._words + 2), "uint32", write=True)
        self.steps, self.entries = heads.head_dim // WORD, heads.page_size * 4
        self.dtype = with_lanes("int32", isa.lanes)
        self._dot = integer_dot(kernel, isa, WeightFormat("q4", "float32"), 16)

    def hold(self, queries: Queries) -> None: ...

    def store(self, row: Scalar, head: Scalar, query: Array) -> None:
        kernel, vectors = self._kernel, pieces(self._heads.head_dim, LANES)
        # The bits of a NaN are larger than those of every number, so a NaN reaches the scale.
        bits = [
            reinterpret(query[ramp(start, lanes)], integers) & number(0x7FFFFFFF, integers)
            for start, lanes in vectors
            for integers in [with_lanes("uint32", lanes)]
        ]
        highest = reduce(maximum, (intrinsic("uint32", "vector.reduce.umax", each) for each in bits))
        largest = kernel.let("largest", reinterpret(highest, "float32"))
        factor = kernel.let("factor", select(largest > 0, number(LARGEST, "float32") / largest, number(0, "float32")))
        sums = []
        for start, lanes in vectors:
            elements = rounded(query[ramp(start, lanes)] * splat(factor, lanes))
            codes = kernel.let("codes", cast(elements, with_lanes("int32", lanes)))
            sums.append(intrinsic("int32", "vector.reduce.add", codes))
            first, second = (
                take_lanes(codes, [word + lane for word in range(0, lanes, WORD) for lane in order])
                for order in (FIRST_OF_PAIRS, SECOND_OF_PAIRS)
            )
            half = with_lanes("int32", lanes // 2)
            pairs = first & number(0xFFFF, half) | second << number(16, half)
            self._q[row, head, ramp(start // 2, lanes // 2)] = reinterpret(pairs, with_lanes("uint32", lanes // 2))
        zero = sum_of(sums) * number(-self._pages.zero, "int32")
        self._q[row, head, self._words] = reinterpret(zero, "uint32")
        self._q[row, head, self._words + 1] = reinterpret(largest / number(LARGEST, "float32"), "uint32")

    def start(self, queries: Queries) -> list[Scalar]:
        return [self._dot.start(self._zero(query)) for query in queries]

    def add(
        self, sums: list[Scalar], queries: Queries, page: Scalar, kv_head: Scalar, in_page: int, step: Scalar
    ) -> list[Scalar]:
        operands = self._dot.operands(self._pages.words(page, kv_head, in_page, step, self._lanes), None, 0)
        for index, operand in enumerate(operands):
            words = [reinterpret(self._q[row, head, step * len(operands) + index], "int32") for row, head in queries]
            sums = [self._dot.add(total, operand, word) for total, word in zip(sums, words, strict=True)]
        return sums

    def finish(self, sums: list[Scalar], queries: Queries, page: Scalar, kv_head: Scalar, in_page: int) -> list[Scalar]:
        scales = self._kernel.let("scales", self._pages.scales(page, 0, kv_head, in_page, self._lanes))
        found = []
        for total, (row, head) in zip(sums, queries, strict=True):
            scale = reinterpret(self._q[row, head, self._words + 1], "float32")
            integers = self._dot.finish(total, self._zero((row, head)))
            found.append(cast(integers, floats(self._lanes)) * (scales * splat(scale, self._lanes)))
        return found

    def _zero(self, query: tuple[Scalar, Scalar]) -> Scalar:
        return splat(reinterpret(self._q[(*query, self._words)], "int32"), self._lanes)
