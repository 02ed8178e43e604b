"""The new token of a sequence in attention_decode: its heads in workgroup memory, its key and value on their page, and
its scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..ir.heads import Scores
from .builder import Scalar, all_of, minimum, select, sum_of
from .decode_range import NewTokenRange
from .hadamard import rotate_rows
from .linear_vector import power_of_two
from .pages import extreme_lane, extreme_of
from .scores import capped, scaled
from .vectors import lane_of


class NewToken:
    """``rows`` holds the workgroup's scaled queries, then the new key and value; ``scores`` the new key's score for
    each query head. A step that appends nothing has only queries.
    """

    def __init__(self, work: NewTokenRange, scores: Scores) -> None:
        self.work, self.facts = work, scores
        kernel, heads, threads = work.kernel, work.options.heads, work.options.threads
        self._num_rows = heads + (2 if work.new.appends else 0)
        self.rows = kernel.shared("rows", (self._num_rows, work.facts.vectors), work.facts.vector_dtype)
        self._partials = kernel.shared("partials", (threads,), "float32")
        if work.new.appends:
            self._products = kernel.shared("products", (heads * work.facts.vectors,), "float32")
            self.scores = kernel.shared("new_scores", (heads,), "float32")
        # The rows whose squares are summed: the queries, the key, and the value if it is normalized. Wide norms have
        # one sum for all queries and one for all keys.
        self._normed_rows = self._num_rows - (1 if work.new.appends and not work.new.norms_values else 0)
        self._sums = 2 if work.new.wide else self._normed_rows
        self._threads_a_sum = threads // power_of_two(self._sums)

    def load_heads(self) -> None:
        """Read, norm, rotate and scale. A range without the new token needs only the queries. Ends without a
        barrier.
        """
        work, kernel = self.work, self.work.kernel
        heads, threads, vectors = work.options.heads, work.options.threads, work.facts.vectors
        if work.new.normed:
            self._sum_squares()
        needed: Scalar | int = self._num_rows * vectors
        if work.new.appends and work.options.split:
            needed = kernel.let("needed", select(work.owns_new, heads + 2, heads) * vectors)
        for start in range(0, self._num_rows * vectors, threads):
            item = kernel.let("item", work.thread + start)
            with kernel.when(item < needed):
                row_index, index = kernel.let("row_index", item // vectors), kernel.let("index", item % vectors)
                factor = None
                if work.new.normed:
                    is_query = row_index < heads
                    index_of_sum = (
                        select(is_query, 0, 1) if work.new.wide else minimum(row_index, self._normed_rows - 1)
                    )
                    factor = work.new.factor(self._partials[index_of_sum * self._threads_a_sum], is_query)
                value = kernel.let(
                    "value", work.new.vector(work.row, self._head_of(row_index), work.position, index, factor)
                )
                query = scaled(work.facts, self.facts, value)
                self.rows[row_index, index] = select(row_index < heads, query, value)

    def rotate(self) -> None:
        """Rotate the queries and the new key, if keys are stored rotated."""
        work = self.work
        if work.facts.rotates_keys:
            count = work.options.heads + (1 if work.new.appends else 0)
            rotate_rows(work.kernel, work.facts, self.rows, count, work.thread, work.options.threads)

    def append(self) -> None:
        """Write the new key and value to their page, if this workgroup owns them, and use the values as the page stores
        them.
        """
        work, kernel, facts = self.work, self.work.kernel, self.work.facts
        heads, pages = work.options.heads, work.pages
        if pages.quantized:
            self._find_extremes()
        page = kernel.let("page", work.page_of(work.position))
        writes = all_of(work.owns_new, work.first_head % facts.group == 0 if heads < facts.group else True)
        for plane, block, guard in self._blocks():
            with kernel.when(guard):
                vector_indices = [block * facts.block_vectors + i for i in range(facts.block_vectors)]
                fresh = [self.rows[plane + heads, vector_index] for vector_index in vector_indices]
                extreme = self._partials[plane * (work.options.threads // 2)] if pages.quantized else None
                with kernel.when(writes):
                    pages.store(page, plane, work.kv_head, work.position % facts.page_size, block, fresh, extreme)
                # So this token sees the same key and value as later tokens.
                for vector_index, value in zip(vector_indices, pages.rounded(fresh, extreme), strict=True):
                    self.rows[plane + heads, vector_index] = value
        kernel.barrier()

    def score(self) -> None:
        """Compute the new key's scores, on threads that are idle until the first keys arrive."""
        work, kernel, threads = self.work, self.work.kernel, self.work.options.threads
        heads, vectors, lanes = work.options.heads, work.facts.vectors, work.facts.lanes
        with kernel.when(work.owns_new):
            for start in range(0, heads * vectors, threads):
                item = kernel.let("item", work.thread + start)
                with kernel.when(True if start + threads <= heads * vectors else item < heads * vectors):
                    one, other = self.rows[item // vectors, item % vectors], self.rows[heads, item % vectors]
                    self._products[item] = sum_of(lane_of(one, lane) * lane_of(other, lane) for lane in range(lanes))
        kernel.barrier()
        with kernel.when(all_of(work.owns_new, work.thread < heads)):
            score = kernel.local("new_score", 1, "float32", fill=0)
            with kernel.loop("i", vectors) as i:
                score[0] = score[0] + self._products[work.thread * vectors + i]
            self.scores[work.thread] = capped(kernel, self.facts, score[0])
        kernel.barrier()

    def _head_of(self, row_index: Scalar) -> Scalar:
        """The projection's head that a row of ``rows`` comes from."""
        work, facts, heads = self.work, self.work.facts, self.work.options.heads
        if not work.new.appends:
            return work.first_head + row_index
        return select(
            row_index < heads,
            work.first_head + row_index,
            facts.num_heads + (row_index - heads) * facts.num_kv_heads + work.kv_head,
        )

    def _sum_squares(self) -> None:
        """Store each sum of squares with the first of the threads that share it."""
        work, kernel, facts = self.work, self.work.kernel, self.work.facts
        lane = kernel.let("lane", work.thread % self._threads_a_sum)
        index_of_sum = work.thread // self._threads_a_sum
        squares = kernel.local("squares", 1, "float32", fill=0)

        def add(head: Scalar, index: Scalar) -> None:
            squares[0] = squares[0] + work.new.squares(
                kernel.let("projected", work.new.projected(work.row, head, index))
            )

        if work.new.wide:
            # A range without the new token does not need the keys.
            first, count = work.new.wide_heads(index_of_sum == 0, work.owns_new)
            first, length = kernel.let("first_normed", first), kernel.let("length", count * facts.vectors)
            with kernel.loop("i", -(-facts.num_heads * facts.vectors // self._threads_a_sum)) as i:
                index = kernel.let("index", i * self._threads_a_sum + lane)
                with kernel.when(index < length):
                    add(first + index // facts.vectors, index % facts.vectors)
        else:
            head = kernel.let("head", self._head_of(minimum(index_of_sum, self._normed_rows - 1)))
            with kernel.loop("i", -(-facts.vectors // self._threads_a_sum)) as i:
                index = kernel.let("index", i * self._threads_a_sum + lane)
                with kernel.when(index < facts.vectors):
                    add(head, index)
        self._partials[work.thread] = squares[0]
        self._fold(lane, self._threads_a_sum, lambda one, other: one + other)

    def _find_extremes(self) -> None:
        """Find the key's element of largest magnitude with half of the threads, and the value's with the others."""
        work, kernel = self.work, self.work.kernel
        half, vectors = work.options.threads // 2, work.facts.vectors
        plane, lane = kernel.let("plane", work.thread // half), kernel.let("lane", work.thread % half)
        extreme = kernel.local("extreme", 1, "float32", fill=0)
        for start in range(0, vectors, half):
            with kernel.when(True if start + half <= vectors else lane + start < vectors):
                row = self.rows[plane + work.options.heads, lane + start]
                extreme[0] = extreme_of(extreme[0], kernel.let("mine", extreme_lane(row, work.facts.lanes)))
        self._partials[work.thread] = extreme[0]
        self._fold(lane, half, extreme_of)

    def _blocks(self) -> Iterator[tuple[Scalar, Scalar, Scalar]]:
        """Plane and index of the thread's blocks of the new key and value, and whether the block exists."""
        work = self.work
        blocks = work.facts.vectors // work.facts.block_vectors
        for start in range(0, 2 * blocks, work.options.threads):
            item = work.kernel.let("item", work.thread + start)
            yield item // blocks, item % blocks, item < 2 * blocks

    def _fold(self, lane: Scalar, width: int, combine: Callable[[Scalar, Scalar], Scalar]) -> None:
        def into(mine: Scalar, other: Scalar) -> None:
            self._partials[mine] = combine(self._partials[mine], self._partials[other])

        self.work.kernel.fold(self.work.thread, lane, width, into)
