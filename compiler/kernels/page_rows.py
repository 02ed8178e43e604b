"""The heads of a workgroup with two vectors per thread: queries, and keys and values that become rows of pages."""

from __future__ import annotations

from collections.abc import Callable

from ..ir.expr import Expr
from ..ir.heads import Heads
from .builder import KernelBuilder, Scalar, all_of, minimum, select
from .hadamard import rotate_rows
from .pages import Pages, extreme_lane, extreme_of

# The most threads of a workgroup. On an H200, a long prompt's workgroups started at 0.8 per ns, whatever their size.
THREADS = 256


class HeadGroup:
    """As many of the ``num_heads`` heads of one row as the threads of a workgroup can hold. It declares the grid and
    the threads, so a kernel's buffers come before it.

    A thread has two ``vectors``: index, and whether it exists. If ``pairs`` is not 0, these are the vectors t and
    t + pairs of the head for the threads t of the first ``pairs``; all others are neighbours. Store the vectors in
    ``values``, then call the methods in their order.
    """

    def __init__(self, kernel: KernelBuilder, heads: Heads, num_heads: int, rows: Expr, pairs: int = 0) -> None:
        self._kernel, self._heads, self._form = kernel, heads, heads.form
        self._head_threads = -(-heads.vectors // 2)
        groups = -(-num_heads // (THREADS // self._head_threads))
        self.count = -(-num_heads // groups)
        self._threads = self.count * self._head_threads
        group, self.row = kernel.grid(groups, rows)
        self._thread = kernel.threads(self._threads)
        self.local_head = kernel.let("local_head", self._thread // self._head_threads)
        lane = kernel.let("lane", self._thread % self._head_threads)
        self._lane = lane
        self.head = kernel.let("head", group * self.count + self.local_head)
        self.inside = True if num_heads % self.count == 0 else self.head < num_heads
        rotated = 2 * pairs == heads.vectors
        first = lane if rotated else select(lane < pairs, lane, 2 * lane)
        second = lane + pairs if rotated else select(lane < pairs, lane + pairs, 2 * lane + 1)
        in_head = True if heads.vectors % 2 == 0 else second < heads.vectors
        if heads.vectors % 2:
            second = minimum(second, heads.vectors - 1)
        named = kernel.let("first", first), kernel.let("second", second)
        self.vectors_of_any_head = tuple(zip(named, (True, in_head), strict=True))
        self.vectors = tuple((index, all_of(self.inside, exists)) for index, exists in self.vectors_of_any_head)
        self.values = kernel.local("values", 2, heads.vector_dtype, fill=0)
        # A thread packs a word, which may have vectors of other threads.
        self._shares = self._form is not None and (self._form.vectors > 1 or self._form.rotates_keys)
        self._rows = kernel.shared("rows", (self.count, heads.vectors), heads.vector_dtype) if self._shares else None

    def combined(self, name: str, value: Scalar, combine: Callable[[Scalar, Scalar], Scalar]) -> Scalar:
        """Combine a float32 of each of a head's threads, and return the result to all of them. 0 is neutral. One
        barrier is included.
        """
        kernel = self._kernel
        parts = kernel.shared(name, (self._threads,), "float32")
        parts[self._thread] = value
        kernel.barrier()
        return self._folded(f"{name}_of_head", self._head_threads, combine, lambda i: parts[self._first_thread + i])

    def sum_of_all(self, name: str, value: Scalar) -> Scalar:
        """The sum of a float32 of each of the workgroup's threads. Two barriers are included."""
        kernel = self._kernel
        of_heads = kernel.shared(f"{name}_of_heads", (self.count,), "float32")
        of_head = self.combined(name, value, lambda one, other: one + other)
        with kernel.when(self._lane == 0):
            of_heads[self.local_head] = of_head
        kernel.barrier()
        return self._folded(f"{name}_of_all", self.count, lambda one, other: one + other, lambda i: of_heads[i])

    def rotate(self, excepted: Scalar | None = None) -> None:
        """Rotate the heads, if keys are stored rotated, except those for which a condition holds."""
        if self._rows is None:
            return
        kernel = self._kernel
        self._store_rows()
        kernel.barrier()
        if not self._heads.rotates_keys:
            return
        rotate_rows(kernel, self._heads, self._rows, self.count, self._thread, self._threads)
        for i, (index, exists) in enumerate(self.vectors):
            with kernel.when(exists):
                rotated = self._rows[self.local_head, index]
                self.values[i] = rotated if excepted is None else select(excepted, self.values[i], rotated)
        if excepted is not None:
            kernel.barrier()
            self._store_rows()

    def measure(self) -> None:
        """Find each head's element of largest magnitude, if pages are quantized."""
        if self._form is None:
            return
        one, other = (
            self._kernel.let("mine", extreme_lane(self.values[i], self._heads.lanes)) for i in range(len(self.vectors))
        )
        self._extreme = self.combined("extremes", self._kernel.let("mine", extreme_of(one, other)), extreme_of)

    def store(self, pages: Pages, slot: Scalar, plane: Scalar, kv_head: Scalar) -> None:
        """Write the rows. The slot is the page's number times the page size, plus the row."""
        page_size = self._heads.page_size
        page, in_page = self._kernel.let("page", slot // page_size), self._kernel.let("in_page", slot % page_size)
        extreme = self._extreme if pages.quantized else None
        if pages.block_vectors == 1:
            for i, (index, exists) in enumerate(self.vectors):
                with self._kernel.when(exists):
                    pages.store(page, plane, kv_head, in_page, index, [self.values[i]], extreme)
            return
        assert pages.block_vectors == 2, self._heads
        assert self._rows is not None, self._heads
        vectors = [self._rows[self.local_head, 2 * self._lane + i] for i in range(2)]
        with self._kernel.when(self.inside):
            pages.store(page, plane, kv_head, in_page, self._lane, vectors, extreme)

    @property
    def _first_thread(self) -> Scalar:
        return self.local_head * self._head_threads

    def _folded(
        self, name: str, count: int, combine: Callable[[Scalar, Scalar], Scalar], part: Callable[[Scalar], Scalar]
    ) -> Scalar:
        total = self._kernel.local(name, 1, "float32", fill=0)
        with self._kernel.loop("i", count) as i:
            total[0] = combine(total[0], self._kernel.let("part", part(i)))
        return self._kernel.let(name, total[0])

    def _store_rows(self) -> None:
        assert self._rows is not None
        for i, (index, exists) in enumerate(self.vectors):
            with self._kernel.when(exists):
                self._rows[self.local_head, index] = self.values[i]
