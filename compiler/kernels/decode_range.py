"""The keys of one workgroup of decode attention: its sizes, its arguments, and the range of keys that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..ir.expr import Expr
from ..ir.heads import Heads, Preparation
from .builder import Array, KernelBuilder, Scalar, all_of, maximum, minimum, select, truncated_quotient
from .new_heads import NewHeads
from .pages import Pages
from .scores import first_page_key, longest_reach

# The maximum number of result vectors that a thread holds in registers, and the most values that it loads before it
# uses the first; half as many if results are added for each tile.
MAX_RESULTS = 16
VALUES_AT_ONCE = 4
# The vectors of each key that a thread then unpacks before it uses the first.
VECTORS_AT_ONCE = 2
# The threads that search for a tile's largest score of the same heads.
FOLD_LANES = 8
# A row has at most 64 ranges, one less for each sequence of the batch, and at least 4: one sequence fills a GPU, and
# many sequences need neither more workgroups nor more memory for partial results.
MOST_RANGES, LEAST_RANGES = 64, 4


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """``heads`` query heads per workgroup, a divisor of the number per kv head. ``split``: a range has this many keys,
    or a multiple of it in long contexts; None if one workgroup reads all keys. ``each_tile``: the threads' results of a
    tile are added in workgroup memory before the next tile is scored, so that a thread has only its part of the
    workgroup's sums in registers meanwhile.
    """

    heads: int
    threads: int = 64
    tile: int = 256
    split: int | None = None
    each_tile: bool = False

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
        count, most = facts.block_vectors, MAX_RESULTS // 2 if self.each_tile else MAX_RESULTS
        while count > 1 and count * self.heads > most:
            count //= 2
        return count

    def parts(self, facts: Heads) -> int:
        """The number of threads that share a value."""
        return facts.vectors // self.value_vectors(facts)

    def key_bytes(self, facts: Heads) -> int:
        """The bytes of a thread's keys of a tile, whose blocks have 16 bytes."""
        return self.tile // self.threads * 16 * facts.vectors // facts.block_vectors

    def numbers(self, facts: Heads) -> int:
        """About as many numbers as a thread has in registers at once."""
        results = facts.lanes * self.heads * self.value_vectors(facts)
        totals = 4 * self.score_vectors
        # Scores and unpacked vectors of each key, its words as they are loaded, and what unpacks integers.
        a_key = self.heads + self.vectors_at_once(facts) * facts.lanes
        a_key += (4 if facts.block_vectors > 1 else 2) + (0 if facts.form is None else 2 * facts.form.vectors)
        scoring = self.tile // self.threads * a_key + totals
        if not self.each_tile:
            return scoring + results
        return max(scoring, results + 2 * facts.lanes + totals) + facts.lanes * self.sum_vectors(facts)

    def vectors_at_once(self, facts: Heads) -> int:
        """The vectors of each key that a thread unpacks before it uses the first."""
        return min(facts.block_vectors, VECTORS_AT_ONCE) if self.each_tile else facts.block_vectors

    def sum_vectors(self, facts: Heads) -> int:
        """A thread's vectors of the workgroup's result."""
        return -(-self.heads * facts.vectors // self.threads)

    @property
    def values_at_once(self) -> int:
        """The values that a thread loads before it uses the first, so that it waits for memory less often."""
        return VALUES_AT_ONCE // 2 if self.each_tile else VALUES_AT_ONCE

    def shared_bytes(self, facts: Heads) -> int:
        """Bytes of workgroup memory: new heads, weights, folds, the softmax of each head, and the new key's scores."""
        rows, new_scores = (self.heads + 2) * facts.head_dim, self.heads * (facts.vectors + 1)
        return 4 * (
            rows + 4 * self.work_size(facts) + self.threads + 4 * self.score_vectors * (FOLD_LANES + 3) + new_scores
        )


@dataclass(frozen=True, slots=True)
class Ranges:
    """The division of a row's keys into ranges, which start at the first page that the row sees.

    ``max_rows``: the most new tokens of a sequence. A batch's rows are numbered ``sequence * max_rows + token``.
    """

    heads: Heads
    window: int | None
    split: int
    max_rows: int = 1

    @property
    def count(self) -> Expr:
        """The number of ranges of each row of a batch; ranges behind a row's last key are empty."""
        most: Expr = ["max", LEAST_RANGES, ["sub", MOST_RANGES, self.heads.sequences]]
        return ["min", self._ranges_of_context, most]

    @property
    def partials(self) -> Expr:
        """At least the number of rows times `count`, for this batch and every smaller one."""
        sequences = self.heads.sequences
        # x * (64 - x) is at most 32 * 32.
        most: Expr = ["max", (MOST_RANGES // 2) ** 2, ["mul", LEAST_RANGES, sequences]]
        rows: Expr = ["min", most, ["mul", sequences, self._ranges_of_context]]
        return ["mul", self.max_rows, rows] if self.max_rows > 1 else rows

    def keys(self, kernel: KernelBuilder, length: Scalar) -> Scalar:
        """The keys of a range of a row that reads ``length`` keys: a multiple of ``split``."""
        step = kernel.let("step", kernel.size(self.count) * self.split)
        # TVM's simplifier would take seconds to reason about the quotient wherever it is used.
        return opaque(kernel, "range_keys", truncated_quotient(length + step - 1, step) * self.split)

    @contextmanager
    def rows(self, kernel: KernelBuilder, seq_starts: Array, sequence: Scalar) -> Iterator[tuple[Scalar, Scalar]]:
        """A loop over the new tokens of a sequence, as the row and its number in the sequence; there are none if the
        sequence has more than ``max_rows``.
        """
        first, length = kernel.let("first_row", seq_starts[sequence]), seq_starts[sequence + 1] - seq_starts[sequence]
        with kernel.loop("token", kernel.let("rows", select(length <= self.max_rows, length, 0))) as token:
            yield kernel.let("row", first + token), token

    @property
    def _ranges_of_context(self) -> Expr:
        """The ranges of ``split`` keys in the longest context."""
        return ["ceildiv", self.reach, self.split]

    @property
    def reach(self) -> Expr:
        """The most keys of a row."""
        return longest_reach(self.heads, self.window, self.max_rows)

    def results(self, kernel: KernelBuilder, *, write: bool = False) -> Array:
        """The scratch buffer "partials": for each range and head the weighted values, and one vector more for the
        largest score and the sum of weights.
        """
        shape = (self.partials, self.heads.num_heads, self.heads.vectors + 1)
        return kernel.scratch("partials", shape, self.heads.vector_dtype, write=write)


def opaque(kernel: KernelBuilder, name: str, value: Scalar) -> Scalar:
    """An integer in a register of its own, so that TVM computes it once and knows nothing about it."""
    register = kernel.local(name, 1, "int32")
    register[0] = value
    return kernel.let(f"{name}_value", register[0])


class DecodeRange:
    """The arguments that kernels of decode attention share, and the workgroup's heads and keys.

    Keys count from the sequence's first token. The workgroup's are ``count`` from ``first_key`` on; ``count`` is 0 if
    the range lies behind the row's last key. Keys before ``first_visible`` are outside the window.
    """

    row: Scalar
    position: Scalar
    first_key: Scalar | int
    count: Scalar
    first_visible: Scalar | None
    _token: Scalar | int

    def __init__(
        self, kernel: KernelBuilder, facts: Heads, options: DecodeOptions, ranges: Ranges | None, *, write: bool
    ) -> None:
        """``write``: the kernel writes pages too."""
        self.kernel, self.facts, self.options, self.ranges = kernel, facts, options, ranges
        self.positions = kernel.buffer("positions", (facts.rows,), "int32")
        self.page_indptr = kernel.buffer("page_indptr", (["add", facts.sequences, 1],), "int32")
        self._page_ids = kernel.buffer("page_ids", ("L",), "int32")
        self.pages = Pages(kernel, facts, write=write, blocks=True)
        if ranges is None:
            self.results = kernel.buffer(
                "y", (facts.rows, facts.num_heads, facts.vectors), facts.stored_dtype, write=True
            )
        else:
            self.results = ranges.results(kernel, write=True)
        workgroups = facts.num_heads // options.heads
        group_x, self.sequence = kernel.grid(
            workgroups if ranges is None else ["mul", workgroups, ranges.count], facts.sequences
        )
        self.thread = kernel.threads(options.threads)
        workgroup = group_x if ranges is None else group_x % workgroups
        self._range_index: Scalar | int = 0 if ranges is None else group_x // workgroups
        self.first_head = kernel.let("first_head", workgroup * options.heads)
        self.kv_head = kernel.let("kv_head", self.first_head // facts.group)
        self._first_page = kernel.let("first_page", self.page_indptr[self.sequence])

    def find_keys(self, window: int | None, row: Scalar, token: Scalar | int, end: Scalar | None = None) -> None:
        """Find the range of a row, the ``token``-th new one of its sequence. ``end`` is the key behind its last one,
        None for the key behind its own.
        """
        kernel, ranges = self.kernel, self.ranges
        self.row, self._token, self.position = row, token, kernel.let("position", self.positions[row])
        end = self.position + 1 if end is None else end
        start = first_page_key(self.facts, window, self.position)
        self.first_visible = None if window is None else kernel.let("first_visible", self.position - (window - 1))
        if ranges is None:
            self.first_key = start if isinstance(start, int) else kernel.let("first_key", start)
            self.count = kernel.let("count", end - self.first_key)
            return
        range_keys = ranges.keys(kernel, end - start)
        self.first_key = kernel.let("first_key", start + self._range_index * range_keys)
        self.count = kernel.let("count", maximum(minimum(end - self.first_key, range_keys), 0))

    def result_row(self) -> Scalar:
        """The row of this range in ``results``."""
        if self.ranges is None:
            return self.row
        kernel, batch_row = self.kernel, self.sequence * self.ranges.max_rows + self._token
        return kernel.let("result_row", batch_row * kernel.size(self.ranges.count) + self._range_index)

    def page_of(self, key: Scalar) -> Scalar:
        """The page of a key of the sequence."""
        return self._page_ids[self._first_page + key // self.facts.page_size]


class NewTokenRange(DecodeRange):
    """The range of the single new token of each sequence, whose heads come from the projection. ``owns_new``: the
    range has the new token's key, which is not on its page yet.
    """

    def __init__(
        self,
        kernel: KernelBuilder,
        facts: Heads,
        preparation: Preparation,
        window: int | None,
        options: DecodeOptions,
    ) -> None:
        ranges = None if options.split is None else Ranges(facts, window, options.split)
        self.new = NewHeads(kernel, facts, preparation)
        super().__init__(kernel, facts, options, ranges, write=preparation.appends)
        self.find_keys(window, self.sequence, 0)
        if ranges is not None:
            # Otherwise the kernel for heads of 128 elements spills registers.
            self.count = opaque(kernel, "own_count", self.count)
        self.owns_new: Scalar | bool = preparation.appends
        if preparation.appends and ranges is not None:
            self.owns_new = all_of(self.first_key <= self.position, self.position < self.first_key + self.count)
