"""The rows of a batch as the arguments of a kernel: each row's position, its sequence, and the sequence's pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .builder import KernelBuilder, Scalar, maximum, minimum, select
from .heads import Heads, Scores
from .scores import first_key, first_page_key, last_key


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """The rows of a tile that belong to one sequence: from ``start`` to ``end``, counted from the tile's first row.

    ``first_key`` and ``last_key`` are the first and last key that any of these rows sees, ``last`` is the position of
    the sequence's last new token, and ``first_page`` is the index of its first page in the list of pages.
    """

    start: Scalar
    end: Scalar
    first_page: Scalar
    first_key: Scalar | int
    last_key: Scalar
    last: Scalar | None


class BatchRows:
    """The arguments "positions", "seq_starts", "page_indptr" and "page_ids" of a kernel that runs on any batch."""

    def __init__(self, kernel: KernelBuilder, heads: Heads, scores: Scores) -> None:
        self._kernel, self._heads, self._scores = kernel, heads, scores
        self.positions = kernel.buffer("positions", (heads.rows,), "int32")
        self._seq_starts = kernel.buffer("seq_starts", (["add", heads.sequences, 1],), "int32")
        self._page_indptr = kernel.buffer("page_indptr", (["add", heads.sequences, 1],), "int32")
        self._page_ids = kernel.buffer("page_ids", ("L",), "int32")

    def page(self, first_page: Scalar, index: Scalar) -> Scalar:
        """Page ``index`` of the sequence whose pages start at ``first_page`` of the list."""
        return self._page_ids[first_page + index]

    def page_of(self, first_page: Scalar, key: Scalar) -> Scalar:
        """The page of a key."""
        return self.page(first_page, key // self._heads.page_size)

    def sequence_of(self, row: Scalar) -> tuple[Scalar, Scalar | None]:
        """The first page of a row's sequence, and the position of its last new token, or None if that is not needed."""
        kernel = self._kernel
        # The row's sequence is the number of sequences that end at or before it.
        sequence = kernel.local("sequence", 1, "int32", fill=0)
        with kernel.loop("other", kernel.size(self._heads.sequences)) as other:
            sequence[0] = sequence[0] + select(self._seq_starts[other + 1] <= row, 1, 0)
        return kernel.let("first_page", self._page_indptr[sequence[0]]), self._last(sequence[0])

    @contextmanager
    def sequences(self, first_row: Scalar, end_row: Scalar) -> Iterator[SequenceRows]:
        """A loop over the sequences of the rows of a tile."""
        kernel, scores = self._kernel, self._scores
        # These sequences end after the tile's first row and start before its end.
        first_sequence, end_sequence = (
            kernel.local(each, 1, "int32", fill=0) for each in ("first_sequence", "end_sequence")
        )
        with kernel.loop("other", kernel.size(self._heads.sequences)) as other:
            first_sequence[0] = first_sequence[0] + select(self._seq_starts[other + 1] <= first_row, 1, 0)
            end_sequence[0] = end_sequence[0] + select(self._seq_starts[other] < end_row, 1, 0)
        with kernel.loop("s", end_sequence[0] - first_sequence[0]) as s:
            sequence = kernel.let("sequence", first_sequence[0] + s)
            start = kernel.let("own_start", maximum(self._seq_starts[sequence] - first_row, 0))
            end = kernel.let("own_end", minimum(self._seq_starts[sequence + 1], end_row) - first_row)
            first_page = kernel.let("first_page", self._page_indptr[sequence])
            last = self._last(sequence)
            # Positions ascend within a sequence.
            yield SequenceRows(
                start,
                end,
                first_page,
                self._named("first_key", first_page_key(self._heads, scores.window, self.positions[first_row + start])),
                kernel.let("last_key", last_key(scores, self.positions[first_row + end - 1], last)),
                last,
            )

    def range_of(self, position: Scalar, last: Scalar | None) -> tuple[Scalar | int, Scalar]:
        """The first key that the row at a position sees, and the key after the last."""
        end = self._kernel.let("end_key", last_key(self._scores, position, last) + 1)
        return self._named("first_key", first_key(self._scores, position)), end

    def _last(self, sequence: Scalar) -> Scalar | None:
        if self._scores.causal:
            return None
        return self._kernel.let("last", self.positions[self._seq_starts[sequence + 1] - 1])

    def _named(self, name: str, value: Scalar | int) -> Scalar | int:
        return value if isinstance(value, int) else self._kernel.let(name, value)
