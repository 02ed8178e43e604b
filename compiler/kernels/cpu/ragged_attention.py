"""ragged_attention: attention over the rows of each text, whose queries, keys and values are in a joint projection.

The first phase writes queries, keys and values to scratch: keys and values in pages of one text each, in the layout of
`pages.py`. The second phase is that of `attention.py`, on these pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ...ir.expr import Expr
from ...ir.heads import ATTENDED, Heads, Scores
from ..builder import Kernel, KernelBuilder, Scalar, cast, minimum, truncated_quotient
from ..vectors import floats, join, lane_of, ramp, vector
from .attention import Arguments, attend_tiles
from .builder import Isa, pieces
from .key_products import key_products
from .pages import Pages


def ragged_attention(
    name: str, *, isa: Isa, heads: Heads, scores: Scores, tile_rows: int, y_in_scratch: bool = False
) -> Kernel:
    """``y_in_scratch``: the result is the scratch buffer `ATTENDED`."""
    arguments = RaggedArguments(name, isa, heads, scores, result=ATTENDED if y_in_scratch else None)
    arguments.prepare_queries()
    return attend_tiles(arguments, tile_rows)


@dataclass(frozen=True, slots=True)
class RowOfPage:
    """A ``row`` of the batch, its ``page`` and place ``in_page``, and the row at which its text stops."""

    row: Scalar
    page: Scalar
    in_page: Scalar
    stop: Scalar

    @property
    def first_row(self) -> Scalar:
        """The first row of the page."""
        return self.row - self.in_page


class RaggedArguments(Arguments):
    """The pages of a text follow those of the texts before it: its first is `first_page`, which grows from one text to
    the next by at least the number of the text's pages.
    """

    def _declare(self) -> None:
        heads, kernel = self.heads, self.kernel
        self._all_heads = heads.num_heads + 2 * heads.num_kv_heads
        self._qkv = kernel.buffer("qkv", (heads.rows, self._all_heads, heads.head_dim), heads.activation)
        reads = self._scores.reads_positions
        self._positions = kernel.buffer("positions", (heads.rows,), "int32") if reads else None
        self.seq_starts = kernel.buffer("seq_starts", (["add", heads.sequences, 1],), "int32")
        self._declare_pages()

    def _declare_pages(self) -> None:
        heads, kernel = self.heads, self.kernel
        self._stored_heads = replace(heads, activation="float32")
        self._pages = Pages(kernel, self._stored_heads, write=True, scratch=self._num_pages())
        self._products = key_products(kernel, self.isa, self._stored_heads, self._pages)
        self._page_ids = None

    @property
    def page_keys(self) -> int:
        """The keys of a page."""
        return self.heads.page_size

    def _num_pages(self) -> Expr:
        """At least the number of pages of all texts."""
        return ["add", ["ceildiv", self.heads.rows, self.page_keys], self.heads.sequences]

    def first_page(self, sequence: Scalar) -> Scalar:
        start = truncated_quotient(self.seq_starts[sequence], self.page_keys)
        return self.kernel.let("first_page", start + sequence)

    def prepare_queries(self) -> None:
        """Each task processes one row: its queries and values, and a part of the heads of the keys of all rows of its
        page.
        """
        kernel, heads = self.kernel, self.heads
        values_start = heads.num_heads + heads.num_kv_heads
        with self._each_row() as at:
            stored = kernel.local("stored", heads.head_dim, "float32")
            for first_head, count in ((0, heads.num_heads), (values_start, heads.num_kv_heads)):
                with kernel.loop("head", count) as head:
                    for first, lanes in pieces(heads.head_dim, self.isa.lanes):
                        stored[ramp(first, lanes)] = self._load(at.row, first_head + head, first, lanes)
                    if first_head:
                        self._pages.append(self.isa, at.page, 1, head, at.in_page, stored)
                    else:
                        self._store_query(at.row, head, stored)
            with self._heads_of_page(at) as kv_head:
                self._store_keys(kv_head, at.page, at.first_row, at.stop - 1)
        if self._by_distance is not None:
            self._by_distance.prepare()

    @contextmanager
    def _each_row(self) -> Iterator[RowOfPage]:
        kernel = self.kernel
        with kernel.tasks("row", self.heads.rows) as row:
            sequence = self.sequence_of(row)
            start, stop = (kernel.let("text_row", self.seq_starts[sequence + after]) for after in range(2))
            index, in_page = kernel.split(kernel.let("position", row - start), self.page_keys, ("index", "in_page"))
            page = kernel.let("page", self.first_page(sequence) + index)
            yield RowOfPage(row, page, in_page, stop)

    @contextmanager
    def _heads_of_page(self, at: RowOfPage) -> Iterator[Scalar]:
        """The kv heads that a row processes for all rows of its page, which share them."""
        kernel, num_heads = self.kernel, self.heads.num_kv_heads
        rows = kernel.let("rows_of_page", minimum(at.stop - at.first_row, self.page_keys))
        with kernel.loop("turn", truncated_quotient(num_heads - 1 - at.in_page + rows, rows)) as turn:
            yield kernel.let("kv_head", at.in_page + turn * rows)

    def _load(self, row: Scalar, head: Scalar, first: int, lanes: int) -> Scalar:
        return cast(self._qkv[row, head, ramp(first, lanes)], floats(lanes))

    def _store_keys(self, kv_head: Scalar, page: Scalar, first_row: Scalar, last_row: Scalar) -> None:
        """Store the keys of a page's rows element by element. Rows beyond the last one are copies of it, which no query
        sees.
        """
        kernel, size = self.kernel, self.heads.page_size
        head = kernel.let("key_head", self.heads.num_heads + kv_head)
        rows = [kernel.let("key_row", minimum(first_row + i, last_row)) for i in range(size)]
        for first, lanes in pieces(self.heads.head_dim, size):
            loaded = [kernel.let("key", self._load(row, head, first, lanes)) for row in rows]
            if lanes == size:
                columns = transposed(kernel, loaded)
            else:
                columns = (
                    [vector(*(lane_of(key, i) for key in loaded)) for i in range(lanes)]
                    if lanes > 1
                    else [vector(*loaded)]
                )
            for i, column in enumerate(columns):
                self._pages.store_elements(page, kv_head, first + i, column)


def transposed(kernel: KernelBuilder, rows: list[Scalar]) -> list[Scalar]:
    """The columns of a square of vectors, whose number is a power of two: blocks of half the size change places in each
    step.
    """
    size = len(rows)
    block = size // 2
    while block:
        for i in (i for i in range(size) if not i & block):
            one, other = rows[i], rows[i + block]
            lanes = [lane if not lane & block else size + lane - block for lane in range(size)]
            rows[i] = kernel.let("block_row", join(one, other, lanes=lanes))
            lanes = [lane + block if not lane & block else size + lane for lane in range(size)]
            rows[i + block] = kernel.let("block_row", join(one, other, lanes=lanes))
        block //= 2
    return rows
