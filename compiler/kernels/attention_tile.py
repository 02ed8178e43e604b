"""attention over pages for many new tokens of a sequence: prefill.

One workgroup: one query head of ``rows`` new tokens of one sequence; keys in tiles from the first to the last that any
of those tokens sees, with a running softmax (Milakov & Gimelshein 2018), all sums float32. Sequences with at most
``few`` new tokens are left to another kernel.
One thread: a few scores of a tile, for rows and keys a stride apart; then one vector of the result for a few rows.
Needs: ascending positions within a sequence; ``keys`` a multiple of the page, or a part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ..ir.heads import Heads, Scores
from .batch_rows import BatchRows, Tiling
from .builder import Array, Kernel, KernelBuilder, Scalar, all_of, cast, maximum, minimum, number, select
from .new_heads import query_rows
from .pages import Pages
from .scores import LOWEST, before_keys, capped, distance_bias, distance_heads, scaled, sees, weight
from .vectors import splat, sum_lanes

# Vectors of each key in workgroup memory at a time.
KEY_VECTORS = 8


@dataclass(frozen=True, slots=True)
class TileOptions:
    rows: int
    keys: int = 32
    threads: int = 128

    def supports(self, heads: Heads) -> bool:
        """Whether a workgroup of these sizes can run such heads."""
        pages_fit = self.keys % heads.page_size == 0 or heads.page_size % self.keys == 0
        return pages_fit and self.threads % self.rows == 0 and heads.vectors <= self.threads

    def shared_bytes(self, heads: Heads) -> int:
        """Workgroup memory: queries, a part of the keys, scores, a fold, and the softmax of each row."""
        vectors = self.rows * padded_vectors(heads) + self.keys * (KEY_VECTORS + 1)
        return 4 * (vectors * heads.lanes + self.rows * (self.keys + 1) + self.threads + 3 * self.rows + self.keys)


def padded_vectors(heads: Heads) -> int:
    """Vectors of a query in workgroup memory, padded with zeros."""
    return -(-heads.vectors // KEY_VECTORS) * KEY_VECTORS


def attention_tile(
    name: str, *, heads: Heads, scores: Scores, options: TileOptions, few: int, q_in_scratch: bool
) -> Kernel:
    """``q_in_scratch``: an earlier kernel, such as rope_append, wrote q to scratch; else q is an input of the step."""
    assert options.supports(heads), (options, heads)
    kernel = KernelBuilder(name, scalars=("B",))
    q, pages = query_rows(kernel, heads, scratch=q_in_scratch), Pages(kernel, heads, write=False)
    batch = BatchRows(kernel, heads, scores)
    return attend(TileAttention(kernel, heads, scores, options, few, q, batch, pages))


def attend(phases: TileAttention) -> Kernel:
    """The complete work of a workgroup."""
    kernel, own, options = phases.kernel, phases.own, phases.options
    with kernel.when(own.count > 0):
        phases.load_queries()
        length = kernel.let("length", own.last_key + 1)
        with kernel.loop("tile_index", (length - own.first_key + options.keys - 1) // options.keys) as tile_index:
            first_key = kernel.let("first_key", own.first_key + tile_index * options.keys)
            count = kernel.let("count", minimum(length - first_key, options.keys))
            phases.load_pages(first_key, length)
            phases.multiply_keys(first_key, count)
            phases.mask_scores(first_key)
            phases.update_softmax()
            phases.add_values(first_key, count)
        phases.store()
    return kernel.finish()


class TileAttention:
    """The arrays of one workgroup, and the phases of its work."""

    def __init__(
        self,
        kernel: KernelBuilder,
        heads: Heads,
        scores: Scores,
        options: TileOptions,
        few: int,
        q: Array,
        batch: BatchRows,
        pages: Pages | None,
        *,
        scratch: str | None = None,
    ) -> None:
        """``q`` has the query heads of each row first. ``pages`` hold the keys and values; None: see `stored`. The
        result is y, or the scratch buffer of that name.
        """
        self.kernel, self.heads, self.facts, self.options = kernel, heads, scores, options
        self.q, self.pages, tiling = q, pages, Tiling(options.rows, few, heads.rows, heads.sequences)
        self.sinks = kernel.buffer("sinks", (heads.num_heads,), "float32") if scores.sinks else None
        self.bias, self.by_distance = distance_bias(kernel, heads, scores), distance_heads(kernel, heads, scores)
        declare = partial(kernel.buffer, "y") if scratch is None else partial(kernel.scratch, scratch)
        self.y = declare((heads.rows, heads.num_heads, heads.vectors), heads.stored_dtype, write=True)

        rows, keys, threads = options.rows, options.keys, options.threads
        self.head, slot = kernel.grid(heads.num_heads, tiling.slots)
        self.thread = kernel.threads(threads)
        self.kv_head = self.head // heads.group
        self.batch, self.own = batch, batch.tile(tiling, slot)

        self.queries = kernel.shared("queries", (rows, padded_vectors(heads)), heads.vector_dtype)
        self.key_part = kernel.shared("key_part", (keys, KEY_VECTORS + 1), heads.vector_dtype)
        self.scores = kernel.shared("scores", (rows, keys + 1), "float32")
        self.partials = kernel.shared("partials", (threads,), "float32")
        self.largest, self.total, self.correction = (
            kernel.shared(each, (rows,), "float32") for each in ("largest", "total", "correction")
        )
        if pages is not None:
            self.tile_pages = kernel.shared("tile_pages", (max(1, keys // heads.page_size),), "int32")

        # A thread's scores: rows score_row + i * row_groups and keys score_key + j * key_groups.
        self.key_groups = min(keys, max(1, threads // 8))
        self.row_groups = threads // self.key_groups
        self.score_rows, self.score_keys = -(-rows // self.row_groups), keys // self.key_groups
        # Threads of a row's softmax.
        self.threads_a_row = threads // rows
        # A thread's part of the result: one vector of rows value_row + i * value_groups.
        self.value_groups = threads // heads.vectors
        self.value_rows = -(-rows // self.value_groups)

    def load_queries(self) -> None:
        """Scale the queries into workgroup memory, start the softmax of each row, and assign each thread its parts."""
        kernel, heads, thread = self.kernel, self.heads, self.thread
        rows, threads, padded = self.options.rows, self.options.threads, padded_vectors(heads)
        for start in range(0, rows * padded, threads):
            item = kernel.let("item", thread + start)
            with kernel.when(True if start + threads <= rows * padded else item < rows * padded):
                row, index = kernel.let("row", item // padded), kernel.let("index", item % padded)
                self.queries[row, index] = number(0, heads.vector_dtype)
                with kernel.when(all_of(row < self.own.count, index < heads.vectors)):
                    query = cast(self.q[self.own.first_row + row, self.head, index], heads.vector_dtype)
                    self.queries[row, index] = scaled(heads, self.facts, query)
        with kernel.when(thread < rows):
            self.largest[thread], self.total[thread] = before_keys(self.sinks, self.head)

        self.score_row, self.score_key = (
            kernel.let("score_row", thread // self.key_groups),
            kernel.let("score_key", thread % self.key_groups),
        )
        self.dots = kernel.local("dots", self.score_rows * self.score_keys, heads.vector_dtype, fill=0)
        self.soft_row, self.lane = (
            kernel.let("soft_row", thread // self.threads_a_row),
            kernel.let("lane", thread % self.threads_a_row),
        )
        self.best, self.sum = kernel.local("best", 1, "float32"), kernel.local("sum", 1, "float32")
        self.value_row, self.index = (
            kernel.let("value_row", thread // heads.vectors),
            kernel.let("index", thread % heads.vectors),
        )
        self.has_values = True if self.value_groups * heads.vectors == threads else self.value_row < self.value_groups
        self.result = kernel.local("result", self.value_rows, heads.vector_dtype, fill=0)

    def load_pages(self, first_key: Scalar, length: Scalar) -> None:
        """Look up the pages of a tile's keys."""
        kernel, page_size = self.kernel, self.heads.page_size
        kernel.barrier()
        if self.pages is None:
            return
        with kernel.when(
            all_of(self.thread < max(1, self.options.keys // page_size), first_key + self.thread * page_size < length)
        ):
            self.tile_pages[self.thread] = self.batch.page(self.own.first_page, first_key // page_size + self.thread)

    def multiply_keys(self, first_key: Scalar, count: Scalar) -> None:
        """Multiply the thread's queries by its keys, which are loaded into workgroup memory part by part."""
        kernel = self.kernel
        for i in range(self.score_rows * self.score_keys):
            self.dots[i] = 0
        distance_rows = self._distance_rows(first_key)
        with kernel.loop("part", padded_vectors(self.heads) // KEY_VECTORS) as part:
            kernel.barrier()
            self._load_key_part(part, first_key, count)
            kernel.barrier()
            with kernel.loop("vector_in_key", KEY_VECTORS) as vector_in_key:
                own_keys = [
                    kernel.let("own_key", self.key_part[self.score_key + j * self.key_groups, vector_in_key])
                    for j in range(self.score_keys)
                ]
                for i in range(self.score_rows):
                    row = self._row_of_score(i)
                    if self.row_groups * self.score_rows != self.options.rows:
                        row = minimum(row, self.options.rows - 1)
                    vector = part * KEY_VECTORS + vector_in_key
                    own_query = kernel.let("own_query", self.queries[row, vector])
                    for j in range(self.score_keys):
                        here = i * self.score_keys + j
                        self.dots[here] = self.dots[here] + own_query * own_keys[j]
                        if self.by_distance is not None and distance_rows is not None:
                            more = self.by_distance.product(
                                own_query, own_keys[j], self.head, distance_rows[here], vector
                            )
                            self.dots[here] = self.dots[here] + more

    def _distance_rows(self, first_key: Scalar) -> Array | None:
        """The row of heads for the distance of each score of the thread."""
        if self.by_distance is None:
            return None
        kernel, own = self.kernel, self.own
        rows = kernel.local("distance_rows_of_scores", self.score_rows * self.score_keys, "int32")
        for i in range(self.score_rows):
            row = minimum(self._row_of_score(i), own.count - 1)
            position = self.batch.position(own.first_row + row)
            for j in range(self.score_keys):
                key = first_key + self.score_key + j * self.key_groups
                rows[i * self.score_keys + j] = self.by_distance.row_of(position, key)
        return rows

    def mask_scores(self, first_key: Scalar) -> None:
        """Store the scores of keys that rows see, and the lowest score for the others. Rows behind the tile's last see
        what that row sees.
        """
        kernel, rows, own = self.kernel, self.options.rows, self.own
        for i in range(self.score_rows):
            row = self._row_of_score(i)
            with kernel.when(True if self.row_groups * self.score_rows == rows else row < rows):
                of_batch = own.first_row + minimum(row, own.count - 1)
                position, last = self.batch.position(of_batch), self.batch.last_of(of_batch, own.last)
                for j in range(self.score_keys):
                    key = self.score_key + j * self.key_groups
                    seen = sees(self.facts, first_key + key, position, last)
                    score = capped(kernel, self.facts, sum_lanes(self.dots[i * self.score_keys + j], self.heads.lanes))
                    if self.bias is not None:
                        score = score + self.bias.of(self.head, position, first_key + key)
                    self.scores[row, key] = select(seen, score, number(LOWEST, "float32"))
        kernel.barrier()

    def update_softmax(self) -> None:
        """Turn scores into weights."""
        kernel, soft_row = self.kernel, self.soft_row
        self.best[0] = LOWEST
        for key, guard in self._soft_keys():
            with kernel.when(guard):
                self.best[0] = maximum(self.best[0], self.scores[soft_row, key])
        self.partials[self.thread] = self.best[0]
        self._fold(maximum)
        new_largest = kernel.let(
            "new_largest", maximum(self.largest[soft_row], self.partials[soft_row * self.threads_a_row])
        )
        self.sum[0] = 0
        for key, guard in self._soft_keys():
            with kernel.when(guard):
                own_weight = kernel.let("weight", weight(self.scores[soft_row, key], new_largest))
                self.scores[soft_row, key] = own_weight
                self.sum[0] = self.sum[0] + own_weight
        kernel.barrier()
        self.partials[self.thread] = self.sum[0]
        self._fold(lambda one, other: one + other)
        with kernel.when(self.lane == 0):
            self.correction[soft_row] = weight(self.largest[soft_row], new_largest)
            self.total[soft_row] = self.total[soft_row] * self.correction[soft_row] + self.partials[self.thread]
            self.largest[soft_row] = new_largest
        kernel.barrier()

    def add_values(self, first_key: Scalar, count: Scalar) -> None:
        """Add the tile's weighted values to the thread's part of the result."""
        kernel, lanes = self.kernel, self.heads.lanes
        with kernel.when(self.has_values):
            for i in range(self.value_rows):
                self.result[i] = self.result[i] * splat(self.correction[self._row_of_value(i)], lanes)
            with kernel.loop("key", count) as key:
                value = kernel.let("value", self.stored(1, first_key, key, self.index))
                for i in range(self.value_rows):
                    self.result[i] = self.result[i] + splat(self.scores[self._row_of_value(i), key], lanes) * value

    def store(self) -> None:
        for i in range(self.value_rows):
            row = self.value_row + i * self.value_groups
            with self.kernel.when(all_of(self.has_values, row < self.own.count)):
                mean = self.result[i] / splat(self.total[self._row_of_value(i)], self.heads.lanes)
                self.y[self.own.first_row + row, self.head, self.index] = cast(mean, self.heads.stored_dtype)

    def _load_key_part(self, part: Scalar, first_key: Scalar, count: Scalar) -> None:
        """KEY_VECTORS vectors of each key of the tile, zeros beyond the last key and the last vector."""
        kernel, heads, threads = self.kernel, self.heads, self.options.threads
        items = self.options.keys * KEY_VECTORS
        for start in range(0, items, threads):
            item = kernel.let("item", self.thread + start)
            with kernel.when(True if start + threads <= items else item < items):
                key = kernel.let("key", item // KEY_VECTORS)
                vector_in_key = kernel.let("vector_in_key", item % KEY_VECTORS)
                vector = kernel.let("vector", part * KEY_VECTORS + vector_in_key)
                self.key_part[key, vector_in_key] = number(0, heads.vector_dtype)
                with kernel.when(
                    all_of(key < count, True if heads.vectors % KEY_VECTORS == 0 else vector < heads.vectors)
                ):
                    self.key_part[key, vector_in_key] = self.stored(0, first_key, key, vector)

    def stored(self, plane: int, first_key: Scalar, key: Scalar, vector: Scalar) -> Scalar:
        """A vector of a key (plane 0) or value (plane 1) of the tile, float32."""
        assert self.pages is not None
        page_size = self.heads.page_size
        in_page = self.kernel.let("in_page", (first_key + key) % page_size)
        return self.pages.load(self.tile_pages[key // page_size], plane, self.kv_head, in_page, vector)

    def _row_of_score(self, i: int) -> Scalar:
        return self.score_row + i * self.row_groups

    def _row_of_value(self, i: int) -> Scalar:
        """Row i of the thread's part of the result; beyond the last row, the last."""
        row = self.value_row + i * self.value_groups
        return row if self.value_groups * self.value_rows == self.options.rows else minimum(row, self.options.rows - 1)

    def _soft_keys(self) -> list[tuple[Scalar, Scalar | bool]]:
        """The keys of the thread's part of a row's softmax, and whether each key exists."""
        keys, step = self.options.keys, self.threads_a_row
        keys_of_thread = [self.lane + i * step for i in range(-(-keys // step))]
        return [(key, True if keys % step == 0 else key < keys) for key in keys_of_thread]

    def _fold(self, combine: Callable[[Scalar, Scalar], Scalar]) -> None:
        """Combine the values of each row's threads in ``partials``."""

        def into(mine: Scalar, other: Scalar) -> None:
            self.partials[mine] = combine(self.partials[mine], self.partials[other])

        self.kernel.fold(self.thread, self.lane, self.threads_a_row, into)
