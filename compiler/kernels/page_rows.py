"""One workgroup writes one row of a page: the key or the value of one kv head of one token."""

from __future__ import annotations

from collections.abc import Callable

from .builder import KernelBuilder, Scalar, maximum
from .heads import Heads
from .linear_vector import power_of_two
from .pages import Pages, largest_lane


def row_threads(heads: Heads) -> int:
    """The threads of a workgroup that processes one head, one vector per thread."""
    return max(32, power_of_two(heads.vectors))


class RowWriter:
    """Writes a head to its page, with ``partials`` in workgroup memory for sums and maxima over the head."""

    def __init__(self, kernel: KernelBuilder, heads: Heads, pages: Pages, thread: Scalar) -> None:
        self._kernel, self._heads, self._pages, self._thread = kernel, heads, pages, thread
        self.partials = kernel.shared("partials", (row_threads(heads),), "float32")

    def fold(self, combine: Callable[[Scalar, Scalar], Scalar]) -> None:
        """Combine the values of all threads in ``partials`` into the first element."""

        def into(mine: Scalar, other: Scalar) -> None:
            self.partials[mine] = combine(self.partials[mine], self.partials[other])

        self._kernel.fold(self._thread, self._thread, row_threads(self._heads), into)

    def measure(self, vector: Scalar) -> None:
        """Find the row's largest magnitude, if pages are quantized. ``vector`` is this thread's, zero beyond the
        head.
        """
        if self._pages.quantized:
            self.partials[self._thread] = largest_lane(vector, self._heads.lanes)
            self.fold(maximum)

    def store(self, slot: Scalar, plane: Scalar, kv_head: Scalar, vector: Scalar) -> None:
        """Write this thread's vector, after `measure`. The slot is the page's number times the page size, plus the
        row.
        """
        page_size = self._heads.page_size
        largest = self.partials[0] if self._pages.quantized else None
        self._pages.store(slot // page_size, plane, kv_head, slot % page_size, self._thread, [vector], largest)
