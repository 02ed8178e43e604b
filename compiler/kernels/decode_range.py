"""The work of one workgroup of attention_decode: its sizes, its arguments, and its heads and keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..ir.expr import Expr
from .builder import Array, KernelBuilder, Scalar, all_of, maximum, minimum
from .heads import Heads, Preparation
from .new_heads import NewHeads
from .pages import Pages
from .scores import first_page_key, longest_reach

# The most vectors of results that a thread holds in registers.
MAX_RESULTS = 16
# The values that a thread loads before it uses the first, so that it waits for memory only once.
VALUES_AT_ONCE = 4
# The threads that search for a tile's largest score of the same heads.
FOLD_LANES = 8


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """``heads`` query heads per workgroup, a divisor of the number per kv head; ``split`` keys per range, None if one
    workgroup reads all keys.
    """

    heads: int
    threads: int = 64
    tile: int = 256
    split: int | None = None

    @property
    def score_vectors(self) -> int:
        """Vectors of 4 heads."""
        return -(-self.heads // 4)

    def supports(self, facts: Heads) -> bool:
        """Whether a workgroup of these sizes can run such heads."""
        divides = (
            facts.group % self.heads == 0
            and self.tile % self.threads == 0
            and (self.split or self.tile) % self.tile == 0
        )
        whole_pages = self.tile % facts.page_size == 0 and facts.page_size % VALUES_AT_ONCE == 0
        return (
            divides
            and whole_pages
            and max(self.parts(facts), FOLD_LANES * self.score_vectors, self.heads) <= self.threads
        )

    def work_size(self, facts: Heads) -> int:
        """Vectors that hold a tile's weights, and later the results of some groups of threads."""
        return max(self.tile * self.score_vectors, self.heads * facts.vectors)

    def value_vectors(self, facts: Heads) -> int:
        """The vectors of a value that a thread sums, for all heads: a block, or a part of one if a block needs too many
        registers.
        """
        count = facts.block_vectors
        while count > 1 and count * self.heads > MAX_RESULTS:
            count //= 2
        return count

    def parts(self, facts: Heads) -> int:
        """The number of threads that share a value."""
        return facts.vectors // self.value_vectors(facts)

    def shared_bytes(self, facts: Heads) -> int:
        """Bytes of workgroup memory: new heads, weights, folds, the softmax of each head, and the new key's scores."""
        rows, new_scores = (self.heads + 2) * facts.head_dim, self.heads * (facts.vectors + 1)
        return 4 * (
            rows + 4 * self.work_size(facts) + self.threads + 4 * self.score_vectors * (FOLD_LANES + 3) + new_scores
        )


def splits(heads: Heads, window: int | None, split: int) -> Expr:
    """The number of ranges of ``split`` keys in the longest context, from the first page that a row sees."""
    return ["ceildiv", longest_reach(heads, window), split]


class DecodeRange:
    """The arguments of the kernel and the workgroup's part of them.

    Keys count from the sequence's first token. The workgroup's are ``count`` from ``first_key`` on, the new one
    included; ``count`` is 0 if the range lies beyond the sequence. Keys before ``first_visible`` are outside the
    window.
    """

    def __init__(
        self, kernel: KernelBuilder, facts: Heads, preparation: Preparation, window: int | None, options: DecodeOptions
    ) -> None:
        self.kernel, self.facts, self.options = kernel, facts, options
        split = options.split
        self.new = NewHeads(kernel, facts, preparation)
        positions = kernel.buffer("positions", ("S",), "int32")
        page_indptr = kernel.buffer("page_indptr", (["add", "S", 1],), "int32")
        self._page_ids = kernel.buffer("page_ids", ("L",), "int32")
        self.pages = Pages(kernel, facts, write=True, blocks=True)
        if split:
            # For each range and head one vector more, for the largest score and the sum of weights.
            shape = ("S", splits(facts, window, split), facts.num_heads, facts.vectors + 1)
            self.results = kernel.scratch("partials", shape, facts.vector_dtype, write=True)
        else:
            self.results = kernel.buffer("y", ("S", facts.num_heads, facts.vectors), facts.stored_dtype, write=True)

        workgroups = facts.num_heads // options.heads
        group_x, self.row = kernel.grid(["mul", workgroups, splits(facts, window, split)] if split else workgroups, "S")
        self.thread = kernel.threads(options.threads)
        workgroup = group_x % workgroups if split else group_x
        self.range_index: Scalar | int = group_x // workgroups if split else 0
        self.first_head = kernel.let("first_head", workgroup * options.heads)
        self.kv_head = kernel.let("kv_head", self.first_head // facts.group)
        self.position = kernel.let("position", positions[self.row])
        first_key = first_page_key(facts, window, self.position) + (self.range_index * split if split else 0)
        self.first_key: Scalar | int = first_key if isinstance(first_key, int) else kernel.let("first_key", first_key)
        self._first_page = kernel.let("first_page", page_indptr[self.row])
        self.first_visible = None if window is None else kernel.let("first_visible", self.position - (window - 1))
        length = self.position + 1 - self.first_key
        self.count = kernel.let("count", maximum(minimum(length, split), 0) if split else length)
        self.owns_new = (
            all_of(self.first_key <= self.position, self.position < self.first_key + split) if split else True
        )

    def page_of(self, key: Scalar) -> Scalar:
        """The page of a key of the sequence."""
        return self._page_ids[self._first_page + key // self.facts.page_size]


class HeadFold:
    """Combines the threads' values for the workgroup's heads into one vector for each four heads."""

    def __init__(self, work: DecodeRange) -> None:
        kernel, options = work.kernel, work.options
        self._kernel, self._thread, self._threads, self._vectors = (
            kernel,
            work.thread,
            options.threads,
            options.score_vectors,
        )
        self._few = kernel.shared("few", (FOLD_LANES * options.score_vectors,), "float32x4")
        self._folding = kernel.local("folding", 1, "float32x4")

    def fold(self, source: Array, combine: Callable[[Scalar, Scalar], Scalar]) -> None:
        """Reduce the vectors of each thread in ``source``, one for each four heads, to a few for `folded`."""
        kernel, step = self._kernel, FOLD_LANES * self._vectors
        kernel.barrier()
        with kernel.when(self._thread < step):
            self._folding[0] = source[self._thread]
            with kernel.loop("i", self._threads // FOLD_LANES - 1) as i:
                self._folding[0] = combine(self._folding[0], source[(i + 1) * step + self._thread])
            self._few[self._thread] = self._folding[0]
        kernel.barrier()

    def folded(self, combine: Callable[[Scalar, Scalar], Scalar]) -> Scalar:
        """The combined vector of all threads. Only for the first ``score_vectors`` threads."""
        self._folding[0] = self._few[self._thread]
        with self._kernel.loop("i", FOLD_LANES - 1) as i:
            self._folding[0] = combine(self._folding[0], self._few[(i + 1) * self._vectors + self._thread])
        return self._folding[0]

    def sum(self, count: int, step: int, source: Array, first: Scalar) -> Scalar:
        """The sum of ``count`` vectors of ``source``, ``step`` apart."""
        self._folding[0] = 0
        with self._kernel.loop("group", count) as group:
            self._folding[0] = self._folding[0] + source[group * step + first]
        return self._folding[0]
