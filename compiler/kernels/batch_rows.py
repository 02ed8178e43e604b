"""The rows of a batch as the arguments of a kernel: each row's position, its sequence, and the sequence's pages."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.expr import Expr
from ..ir.heads import Heads, Scores
from .builder import (
    Array,
    KernelBuilder,
    Scalar,
    Subgroup,
    all_of,
    cast,
    maximum,
    minimum,
    number,
    select,
    truncated_quotient,
)
from .scores import first_key, first_page_key, last_key


@dataclass(frozen=True, slots=True)
class SequenceTile:
    """The rows of a tile, which belong to one sequence: ``count`` rows from ``first_row`` on; 0 if the workgroup has no
    tile.

    ``first_key`` and ``last_key`` are the first and last key that any of these rows sees, ``last`` is the position of
    the sequence's last new token, ``start`` is its first row, and ``first_page`` is the index of its first page in the
    list of pages, if it has pages.
    """

    first_row: Scalar
    count: Scalar
    start: Scalar
    first_page: Scalar | None
    first_key: Scalar | int
    last_key: Scalar
    last: Scalar | None


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tiles of ``rows`` new tokens for the sequences of a batch that have more than ``few``; 0 means all sequences.
    ``batch`` and ``sequences`` are the dims of these: the patches and tiles of pictures have others.

    A workgroup processes the tile in one slot. The slots of a sequence begin at `start`, which grows from one sequence
    to the next by at least the number of the sequence's tiles. So a workgroup finds its sequence by counting those that
    start at or before its slot, and no list of tiles is needed. Some slots are empty.
    """

    rows: int
    few: int
    batch: str = "S"
    sequences: str = "B"

    @property
    def slots(self) -> Expr:
        """The number of slots of a batch."""
        rows, sequences = self.batch, self.sequences
        full_tiles: Expr = ["sub", ["ceildiv", ["add", rows, 1], self.rows], 1]
        # A sequence with more than ``few`` rows has at least that many beyond its first.
        partial: Expr = sequences
        if self.few:
            partial = ["sub", ["ceildiv", ["add", ["sub", rows, sequences], 1], self.few], 1]
        return ["add", full_tiles, ["min", sequences, partial]]

    @property
    def most_slots(self) -> Expr:
        """At least as many, and more for a larger batch, as the size of an array must be."""
        partial: Expr = ["ceildiv", self.batch, self.few] if self.few else self.sequences
        return ["add", ["ceildiv", self.batch, self.rows], ["min", self.sequences, partial]]

    def start(self, sequence: Scalar, first_row: Scalar) -> Scalar:
        """The first slot of a sequence."""
        before = minimum(sequence, truncated_quotient(first_row - sequence, self.few)) if self.few else sequence
        return truncated_quotient(first_row, self.rows) + before

    def sequence_of(self, kernel: KernelBuilder, slot: Scalar, seq_starts: Array) -> Scalar:
        """The sequence whose tile is in a slot: the last one that starts at or before it."""
        started = kernel.local("started", 1, "int32", fill=0)
        with kernel.loop("other", kernel.size(self.sequences)) as other:
            started[0] = started[0] + select(self.start(other, seq_starts[other]) <= slot, 1, 0)
        return kernel.let("sequence", started[0] - 1)


class BatchRows:
    """The arguments "positions", "seq_starts", "page_indptr" and "page_ids" of a kernel that runs on any batch; the
    last two only if it is ``paged``. Without pages, scores that do not depend on positions need none. "reach" is one
    more if rows have their own last keys.
    """

    def __init__(self, kernel: KernelBuilder, heads: Heads, scores: Scores, *, paged: bool = True) -> None:
        self._kernel, self._heads, self._scores = kernel, heads, scores
        self._positions = (
            kernel.buffer("positions", (heads.rows,), "int32") if paged or scores.reads_positions else None
        )
        self._reach = kernel.buffer("reach", (heads.rows,), "int32") if scores.reach else None
        self._seq_starts = kernel.buffer("seq_starts", (["add", heads.sequences, 1],), "int32")
        self._paged = paged
        if paged:
            self._page_indptr = kernel.buffer("page_indptr", (["add", heads.sequences, 1],), "int32")
            self._page_ids = kernel.buffer("page_ids", ("L",), "int32")

    def position(self, row: Scalar) -> Scalar | None:
        """The position of a row; None if no score depends on it."""
        return None if self._positions is None else self._kernel.let("position", self._positions[row])

    @property
    def positions(self) -> Array:
        assert self._positions is not None
        return self._positions

    def last_of(self, row: Scalar, last: Scalar | None) -> Scalar | None:
        """The reach of a row, or the ``last`` of its sequence."""
        return last if self._reach is None else self._kernel.let("reach_of_row", self._reach[row])

    def page(self, first_page: Scalar, index: Scalar) -> Scalar:
        """Page ``index`` of the sequence whose pages start at ``first_page`` of the list."""
        return self._page_ids[first_page + index]

    def page_of(self, first_page: Scalar, key: Scalar) -> Scalar:
        """The page of a key."""
        return self.page(first_page, key // self._heads.page_size)

    def sequence_of(self, row: Scalar) -> tuple[Scalar, Scalar | None]:
        """The first page of a row's sequence, and its `last_of`."""
        kernel = self._kernel
        # The row's sequence is the number of sequences that end at or before it.
        sequence = kernel.local("sequence", 1, "int32", fill=0)
        with kernel.loop("other", kernel.size(self._heads.sequences)) as other:
            sequence[0] = sequence[0] + select(self._seq_starts[other + 1] <= row, 1, 0)
        return kernel.let("first_page", self._page_indptr[sequence[0]]), self.last_of(row, self._last(sequence[0]))

    def tile(self, tiling: Tiling, slot: Scalar, subgroup: Subgroup | None = None) -> SequenceTile:
        """The tile in a slot. With ``subgroup``, its threads share the search for the sequence."""
        kernel, scores = self._kernel, self._scores
        # The tile's sequence is the last one that starts at or before the slot.
        started = kernel.local("started", 1, "int32" if subgroup is None else "float32", fill=0)
        zero, one = (number(value, "int32" if subgroup is None else "float32") for value in (0, 1))
        sequences = kernel.size(self._heads.sequences)
        step: Scalar | int = 1 if subgroup is None else subgroup.size
        with kernel.loop("turn", (sequences + step - 1) // step) as turn:
            other = turn if subgroup is None else kernel.let("other", turn * step + subgroup.lane)
            with kernel.when(True if subgroup is None else other < sequences):
                begins = tiling.start(other, self._seq_starts[other])
                started[0] = started[0] + select(begins <= slot, one, zero)
        if subgroup is not None:
            started[0] = subgroup.sum(started[0])
        sequence = kernel.let("sequence", cast(started[0], "int32") - 1)
        start, end = (kernel.let("sequence_row", self._seq_starts[sequence + behind]) for behind in range(2))
        # The last rows of a sequence see the most keys, so their tile starts first.
        tiles = truncated_quotient(end - start + tiling.rows - 1, tiling.rows)
        tile = kernel.let("tile_of_sequence", tiles - 1 - (slot - tiling.start(sequence, start)))
        first_row = kernel.let("first_row", start + maximum(tile, 0) * tiling.rows)
        is_tile = all_of(tile >= 0, end - start > tiling.few if tiling.few else True)
        count = kernel.let("row_count", select(is_tile, minimum(end - first_row, tiling.rows), 0))
        last = self._last(sequence)
        # Positions ascend within a sequence, and so does the reach.
        last_row = kernel.let("last_row", first_row + maximum(count, 1) - 1)
        first, position = self.position(first_row), self.position(last_row)
        return SequenceTile(
            first_row,
            count,
            start,
            kernel.let("first_page", self._page_indptr[sequence]) if self._paged else None,
            self._named("first_key", first_page_key(self._heads, scores.window, first)),
            kernel.let("last_key", last_key(scores, position, self.last_of(last_row, last))),
            last,
        )

    def range_of(self, position: Scalar, last: Scalar | None) -> tuple[Scalar | int, Scalar]:
        """The first key that the row at a position sees, and the key after the last."""
        end = self._kernel.let("end_key", last_key(self._scores, position, last) + 1)
        return self._named("first_key", first_key(self._scores, position)), end

    def _last(self, sequence: Scalar) -> Scalar | None:
        if self._scores.causal:
            return None
        end = self._seq_starts[sequence + 1]
        if self._positions is None:
            return self._kernel.let("last", end - self._seq_starts[sequence] - 1)
        return self._kernel.let("last", self._positions[end - 1])

    def _named(self, name: str, value: Scalar | int) -> Scalar | int:
        return value if isinstance(value, int) else self._kernel.let(name, value)
