"""The rows that hold keys and values: one per page, each as long as the context. The engine numbers pages; rows are
their locations in memory.

A decode step uses adjacent rows. Rows between those of its sequences take part as **fillers**: a filler writes a key
and a value at its own next position, which its sequence overwrites before reading. Fillers cost time, so pages are
moved together when that pays off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

# The estimated cost of a filler per step, as the number of tokens whose keys and values could be copied in that time.
FILLER_TOKENS = 64


class KvRows:
    """``planes``: arrays (pages, kv_heads, context, head_dim), keys and values of each layer in turn.

    ``shapes``: kv_heads and head_dim of each plane.
    """

    def __init__(self, shapes: Sequence[tuple[int, int]], pages: int, context: int, dtype: npt.DTypeLike) -> None:
        # The operating system allocates memory on the first write.
        self.planes = [np.zeros((pages, kv_heads, context, head_dim), dtype) for kv_heads, head_dim in shapes]
        self.context = context
        # By row: the number of positions written since its sequence began there. This exceeds the number in use if
        # drafts were rejected.
        self._filled = [0] * pages
        self._rows = list(range(pages))
        self._pages = list(range(pages))
        # The cost of fillers since the last move, in tokens.
        self._debt = 0

    def row(self, page: int) -> int:
        return self._rows[page]

    def filled(self, row: int) -> int:
        return self._filled[row]

    def wrote(self, row: int, end: int) -> None:
        """A sequence has written its positions up to ``end``."""
        self._filled[row] = end

    def copy(self, source: int, destination: int) -> None:
        """Copy a page."""
        first, second = self._rows[source], self._rows[destination]
        length = self._filled[first]
        for plane in self.planes:
            plane[second, :, :length] = plane[first, :, :length]
        self._filled[second] = length

    def span(self, pages: Sequence[int]) -> range:
        """The run of rows that contains the pages, which are moved together if that pays off."""
        self._close_gaps(pages)
        rows = [self._rows[page] for page in pages]
        return range(min(rows), max(rows) + 1)

    @contextmanager
    def fillers(self, rows: Sequence[int]) -> Iterator[list[int]]:
        """The positions at which filler rows write. In a full row this is the last position, which is restored."""
        full = [row for row in rows if self._filled[row] == self.context]
        kept = [(plane, row, plane[row, :, -1].copy()) for row in full for plane in self.planes]
        yield [min(self._filled[row], self.context - 1) for row in rows]
        for plane, row, values in kept:
            plane[row, :, -1] = values

    def _close_gaps(self, pages: Sequence[int]) -> None:
        """Move pages together if their gaps have cost more than the move."""
        rows = sorted(self._rows[page] for page in pages)
        gaps = rows[-1] - rows[0] + 1 - len(rows)
        if not gaps:
            self._debt = 0
            return
        self._debt += gaps * FILLER_TOKENS
        for _ in range(gaps):
            gap = min(set(range(rows[0], rows[-1])).difference(rows), default=None)
            if gap is None:
                return
            end = min(rows[0], rows[-1], key=self.filled)
            cost = self._filled[end] + self._filled[gap]
            if self._debt < cost:
                return
            self._debt -= cost
            self._swap(end, gap)
            rows = sorted([gap, *(row for row in rows if row != end)])

    def _swap(self, first: int, second: int) -> None:
        lengths = self._filled[first], self._filled[second]
        for plane in self.planes:
            moved = plane[first, :, : lengths[0]].copy()
            plane[first, :, : lengths[1]] = plane[second, :, : lengths[1]]
            plane[second, :, : lengths[0]] = moved
        self._filled[first], self._filled[second] = lengths[1], lengths[0]
        pages = self._pages[first], self._pages[second]
        self._pages[first], self._pages[second] = pages[1], pages[0]
        self._rows[pages[0]], self._rows[pages[1]] = second, first
