"""ragged_attention: attention over the rows of each text, whose queries, keys and values are in a joint projection.

The first phase writes queries, keys and values to scratch: keys and values in pages of one text each, in the layout of
`pages.py`. The second phase is that of `attention.py`, on these pages.
"""

from __future__ import annotations

from dataclasses import replace

from ...ir.expr import Expr
from ..builder import Kernel, Scalar, cast, truncated_quotient
from ..heads import ATTENDED, Heads, Scores
from .attention import Arguments, attend_tiles
from .builder import Isa, floats, pieces, ramp
from .pages import Pages


def ragged_attention(
    name: str, *, isa: Isa, heads: Heads, scores: Scores, tile_rows: int, y_in_scratch: bool = False
) -> Kernel:
    """``y_in_scratch``: the result is the scratch buffer `ATTENDED`."""
    arguments = RaggedArguments(name, isa, heads, scores, result=ATTENDED if y_in_scratch else None)
    arguments.prepare_queries()
    return attend_tiles(arguments, tile_rows)


class RaggedArguments(Arguments):
    """The pages of a text follow those of the texts before it: its first is `first_page`, which grows from one text to
    the next by at least the number of the text's pages.
    """

    def _declare(self) -> None:
        heads, kernel = self.heads, self.kernel
        self._all_heads = heads.num_heads + 2 * heads.num_kv_heads
        self._qkv = kernel.buffer("qkv", (heads.rows, self._all_heads, heads.head_dim), heads.activation)
        self._positions = kernel.buffer("positions", (heads.rows,), "int32")
        self.seq_starts = kernel.buffer("seq_starts", (["add", heads.sequences, 1],), "int32")
        count: Expr = ["add", ["ceildiv", heads.rows, heads.page_size], heads.sequences]
        self._stored_heads = replace(heads, activation="float32")
        self._pages = Pages(kernel, self._stored_heads, write=True, scratch=count)
        self._page_ids = None

    def first_page(self, sequence: Scalar) -> Scalar:
        start = truncated_quotient(self.seq_starts[sequence], self.heads.page_size)
        return self.kernel.let("first_page", start + sequence)

    def prepare_queries(self) -> None:
        kernel, heads = self.kernel, self.heads
        values_start = heads.num_heads + heads.num_kv_heads
        with kernel.tasks("row", heads.rows) as row:
            sequence = self.sequence_of(row)
            position = kernel.let("position", row - self.seq_starts[sequence])
            index, in_page = kernel.split(position, heads.page_size, ("index", "in_page"))
            page = kernel.let("page", self.first_page(sequence) + index)
            for start, stop, plane in (
                (0, heads.num_heads, None),
                (heads.num_heads, values_start, 0),
                (values_start, self._all_heads, 1),
            ):
                with kernel.loop("head", stop - start) as head:
                    stored = kernel.local("stored", heads.head_dim, "float32")
                    for first, lanes in pieces(heads.head_dim, self.isa.lanes):
                        stored[ramp(first, lanes)] = cast(
                            self._qkv[row, start + head, ramp(first, lanes)], floats(lanes)
                        )
                    if plane is None:
                        self._store_query(row, head, stored)
                    else:
                        self._pages.append(self.isa, page, plane, head, in_page, stored)
