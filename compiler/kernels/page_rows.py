"""The head of a workgroup with one vector per thread: a query, or a key or a value that becomes a row of a page."""

from __future__ import annotations

from ..ir.heads import Heads
from .builder import KernelBuilder, Scalar, cast
from .hadamard import rotate_rows
from .linear_vector import power_of_two
from .pages import Pages, extreme_lane, extreme_of


def row_threads(heads: Heads) -> int:
    """The threads of a workgroup that processes one head, one vector per thread."""
    return max(32, power_of_two(heads.vectors))


class HeadRow:
    """Set ``vector`` in the threads that are ``inside`` the head, then call the methods in their order."""

    def __init__(self, kernel: KernelBuilder, heads: Heads, thread: Scalar) -> None:
        self._kernel, self._heads, self._thread, self._form = kernel, heads, thread, heads.form
        self.inside = thread < heads.vectors
        self._value = kernel.local("value", 1, heads.vector_dtype, fill=0)
        # A thread packs a word, which may have vectors of other threads.
        self._shares = self._form is not None and (self._form.vectors > 1 or self._form.rotates_keys)
        self._row = kernel.shared("row", (1, heads.vectors), heads.vector_dtype) if self._shares else None

    @property
    def vector(self) -> Scalar:
        """The thread's vector."""
        return self._value[0]

    @vector.setter
    def vector(self, value: Scalar) -> None:
        self._value[0] = cast(value, self._heads.vector_dtype)

    def rotate(self, condition: Scalar | bool) -> None:
        """Rotate the head if keys are stored rotated and the condition holds, which is the same in all threads."""
        if self._row is None:
            return
        with self._kernel.when(self.inside):
            self._row[0, self._thread] = self._value[0]
        self._kernel.barrier()
        if self._heads.rotates_keys:
            with self._kernel.when(condition):
                rotate_rows(self._kernel, self._heads, self._row, 1, self._thread, row_threads(self._heads))
            with self._kernel.when(self.inside):
                self._value[0] = self._row[0, self._thread]

    def measure(self) -> None:
        """Find the element of largest magnitude, if pages are quantized."""
        if self._form is not None:
            mine = self._kernel.let("mine", extreme_lane(self._value[0], self._heads.lanes))
            threads = row_threads(self._heads)
            self._extreme = self._kernel.folded("extremes", self._thread, threads, mine, extreme_of)

    def store(self, pages: Pages, slot: Scalar, plane: Scalar, kv_head: Scalar) -> None:
        """Write the row. The slot is the page's number times the page size, plus the row."""
        page_size, blocks = self._heads.page_size, self._heads.vectors // pages.block_vectors
        with self._kernel.when(self._thread < blocks):
            first = self._thread * pages.block_vectors
            row = self._row
            vectors = [self._value[0]] if row is None else [row[0, first + i] for i in range(pages.block_vectors)]
            extreme = self._extreme if pages.quantized else None
            pages.store(slot // page_size, plane, kv_head, slot % page_size, self._thread, vectors, extreme)
