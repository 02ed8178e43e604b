"""attention: three ways to divide the work, which all compute the same bits for a row.

The first phase prepares queries in scratch, times the scale. If it reads a joint projection, it also appends the keys
and values to the pages (`new_heads.py`). Then come the keys, block after block (`key_block.py`):

attention        one task: all query heads of one kv head, for ``tile_rows`` adjacent new tokens, which share each load
                 of a key. One row is the plain form; more rows are for prompts. Both are correct for any batch.
attention_split  one task: the same for one new token and one block of keys; last tasks merge the blocks. For few
                 sequences of many keys, each with one new token (S == B).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from ...ir.heads import Heads, Preparation, Scores
from ..builder import Array, Kernel, Scalar, cast, maximum, minimum, number, select
from ..vectors import floats, ramp, with_lanes
from .builder import CpuKernelBuilder, Isa, pieces, round_up_quotient
from .hadamard import rotate
from .key_block import BLOCK, BlockScores, DistanceBias, DistanceHeads, KeyBlock, Range, Running
from .key_products import Queries, key_products
from .new_heads import NewHeads
from .pages import Pages

# A window beyond this is longer than any context; positions and a window below it add up within 32 bits.
LONGEST_WINDOW = 1 << 30


def attention(name: str, *, isa: Isa, heads: Heads, preparation: Preparation, scores: Scores, tile_rows: int) -> Kernel:
    """Tasks of ``tile_rows`` new tokens; rows of several sequences are computed one sequence after the other."""
    arguments = Arguments(name, isa, heads, scores, preparation)
    arguments.prepare_queries()
    return attend_tiles(arguments, tile_rows)


def attend_tiles(arguments: Arguments, tile_rows: int) -> Kernel:
    """The second phase of `attention`."""
    kernel, heads = arguments.kernel, arguments.heads
    with kernel.tasks("task", ["ceildiv", heads.rows, tile_rows], heads.num_kv_heads) as task:
        row_index, kv_head = kernel.split(task, heads.num_kv_heads, ("row_index", "kv_head"))
        # Later tiles of a prompt see more keys. A thread's tasks are adjacent, so first and last tiles alternate to
        # give all threads equal work.
        turn, odd = kernel.split(row_index, 2, ("turn", "odd"))
        tile = kernel.let(
            "tile", select(odd > 0, round_up_quotient(kernel.size(heads.rows), tile_rows) - 1 - turn, turn)
        )
        row = kernel.local("row", 1, "int32")
        row[0] = tile * tile_rows
        end = kernel.let("end", minimum(tile * tile_rows + tile_rows, kernel.size(heads.rows)))
        with kernel.loop("part", tile_rows) as part, kernel.when(row[0] < end if tile_rows > 1 else True):
            del part
            sequence = arguments.sequence_of(row[0])
            stop = kernel.let("stop", minimum(end, arguments.seq_starts[sequence + 1]))
            # A sequence that decodes in a batch with prompts has one row here, which a tile would compute once for each
            # of its rows.
            alone = stop - row[0] == 1
            with kernel.when(alone if tile_rows > 1 else True):
                attend(arguments, [row[0]], stop, kv_head, sequence)
            if tile_rows > 1:
                # Rows beyond the last are copies of it, and are not stored.
                with kernel.when(stop - row[0] > 1):
                    attend(
                        arguments,
                        [kernel.let("mine", minimum(row[0] + i, stop - 1)) for i in range(tile_rows)],
                        stop,
                        kv_head,
                        sequence,
                    )
            row[0] = stop
    return kernel.finish()


def attention_split(name: str, *, isa: Isa, heads: Heads, preparation: Preparation, scores: Scores) -> Kernel:
    arguments = Arguments(name, isa, heads, scores, preparation, scalars=("T",))
    kernel, group, head_dim = arguments.kernel, heads.group, heads.head_dim
    # For each block and head: the weighted values, then the largest score and the sum of weights.
    partials = kernel.scratch(
        "partials", (heads.sequences, ["ceildiv", "T", BLOCK], heads.num_heads, head_dim + 2), "float32", write=True
    )
    arguments.prepare_queries()
    with kernel.tasks("task", ["ceildiv", "T", BLOCK], heads.rows, heads.num_kv_heads) as task:
        rest, kv_head = kernel.split(task, heads.num_kv_heads, ("rest", "kv_head"))
        block, row = kernel.split(rest, kernel.size(heads.rows), ("block", "row"))
        first_head = kernel.let("first_head", kv_head * group)
        keys = arguments.in_block(arguments.visible(row, row), block)
        with kernel.when(keys.start < keys.stop):
            block_keys = arguments.key_block(group)
            queries = [(row, first_head + i) for i in range(group)]
            arguments.hold(queries)
            for i in range(group):
                block_keys.lengths[i] = keys.stop
                if block_keys.starts is not None:
                    block_keys.starts[i] = keys.start
            block_keys.compute(queries, kv_head, arguments.first_page(row), block, keys)
            for i, (_, head) in enumerate(queries):
                for start, lanes in pieces(head_dim, isa.lanes):
                    partials[row, block, head, ramp(start, lanes)] = block_keys.sums[ramp(i * head_dim + start, lanes)]
                partials[row, block, head, head_dim] = block_keys.largest[i]
                partials[row, block, head, head_dim + 1] = block_keys.total[i]
    with kernel.tasks("task", heads.rows, heads.num_heads) as task:
        row, head = kernel.split(task, heads.num_heads, ("row", "head"))
        running = arguments.running([head])
        with arguments.each_block(arguments.visible(row, row)) as block:
            kept = partials[row, block, head, head_dim], partials[row, block, head, head_dim + 1]
            running.merge(0, *kept, lambda start, lanes: partials[row, block, head, ramp(start, lanes)])
        arguments.store(running, 0, row, head)
    return kernel.finish()


class Arguments:
    """The arguments of an attention kernel, and the phases and phrases that all of its forms share."""

    def __init__(
        self,
        name: str,
        isa: Isa,
        heads: Heads,
        scores: Scores,
        preparation: Preparation | None = None,
        *,
        scalars: tuple[str, ...] = (),
        result: str | None = None,
    ) -> None:
        """``result``: the scratch buffer that receives the result; None: y."""
        self.kernel = kernel = CpuKernelBuilder(name, scalars=scalars)
        self.isa, self.heads, self._scores, self._preparation = isa, heads, scores, preparation
        # Pages may have another dtype than the step's result.
        self._stored_heads = heads
        self._page_ids: Array | None = None
        self._reach: Array | None = None
        self._declare()
        self._sinks = kernel.buffer("sinks", (heads.num_heads,), "float32") if scores.sinks else None
        self._bias: DistanceBias | None = None
        self._by_distance: DistanceHeads | None = None
        if scores.distances:
            assert self._positions is not None, scores
            if scores.has_bias:
                self._bias = DistanceBias(kernel, heads, scores, self._positions)
            if scores.distance_heads:
                self._by_distance = DistanceHeads(kernel, heads, scores, self._positions)
        rows = (heads.rows, heads.num_heads, heads.head_dim)
        declare = partial(kernel.buffer, "y") if result is None else partial(kernel.scratch, result)
        self._y: Array = declare(rows, heads.activation, write=True)

    def _declare(self) -> None:
        """Declare the queries, the pages, and the rows of the batch."""
        kernel, isa, heads, preparation = self.kernel, self.isa, self.heads, self._preparation
        rows = (heads.rows, heads.num_heads, heads.head_dim)
        assert preparation is not None
        self._new = NewHeads(kernel, isa, heads, preparation) if preparation.prepares else None
        self._given = kernel.buffer("q", rows, heads.activation) if self._new is None else None
        self._positions: Array | None = (
            kernel.buffer("positions", (heads.rows,), "int32") if self._new is None else self._new.positions
        )
        self._reach = kernel.buffer("reach", (heads.rows,), "int32") if self._scores.reach else None
        self._pages = Pages(kernel, heads, write=preparation.appends)
        self.seq_starts = kernel.buffer("seq_starts", (["add", heads.sequences, 1],), "int32")
        self._page_indptr = kernel.buffer("page_indptr", (["add", heads.sequences, 1],), "int32")
        self._page_ids = kernel.buffer("page_ids", ("L",), "int32")
        self._products = key_products(kernel, isa, heads, self._pages)

    def first_page(self, sequence: Scalar) -> Scalar:
        """The index of a sequence's first page."""
        return self.kernel.let("first_page", self._page_indptr[sequence])

    def prepare_queries(self) -> None:
        """The first phase."""
        kernel, heads = self.kernel, self.heads
        if self._new is not None:
            self._new.process(self._pages, self._store_query)
            return
        assert self._given is not None
        with kernel.tasks("task", heads.rows, heads.num_heads) as task:
            row, head = kernel.split(task, heads.num_heads, ("row", "head"))
            query = kernel.local("query", heads.head_dim, "float32")
            for start, lanes in pieces(heads.head_dim, self.isa.lanes):
                query[ramp(start, lanes)] = cast(self._given[row, head, ramp(start, lanes)], floats(lanes))
            self._store_query(row, head, query)

    def _store_query(self, row: Scalar, head: Scalar, query: Array) -> None:
        """Scale a query, and rotate it if keys are stored rotated."""
        head_dim, scale = self.heads.head_dim, self._scores.scale
        for start, lanes in pieces(head_dim, self.isa.lanes):
            query[ramp(start, lanes)] = query[ramp(start, lanes)] * number(scale, floats(lanes))
        if self.heads.rotates_keys:
            rotate(self.kernel, self.isa, head_dim, query)
        self._products.store(row, head, query)

    def sequence_of(self, row: Scalar) -> Scalar:
        """The row's sequence: the number of sequences that end at or before it."""
        sequence = self.kernel.local("sequence", 1, "int32", fill=0)
        with self.kernel.loop("other", self.kernel.size(self.heads.sequences)) as other:
            sequence[0] = sequence[0] + select(self.seq_starts[other + 1] <= row, 1, 0)
        return self.kernel.let("sequence", sequence[0])

    def visible(self, row: Scalar, sequence: Scalar) -> Range:
        """The keys of its sequence that a row sees."""
        kernel, scores = self.kernel, self._scores
        if self._positions is None:
            return Range(0, kernel.let("stop", self.seq_starts[sequence + 1] - self.seq_starts[sequence]))
        position = kernel.let("position", self._positions[row])
        last_row = None if scores.causal else self.seq_starts[sequence + 1] - 1
        last = position if last_row is None else self._positions[last_row]
        stop = kernel.let("stop", (last if self._reach is None else self._reach[row]) + 1)
        if scores.window is None:
            return Range(0, stop)
        window = min(scores.window, LONGEST_WINDOW)
        if not scores.causal and self._reach is None:
            stop = kernel.let("stop", minimum(stop, position + window))
        return Range(kernel.let("start", maximum(position - (window - 1), 0)), stop)

    @contextmanager
    def each_block(self, keys: Range) -> Iterator[Scalar]:
        """The blocks that hold ``keys``; a block outside a window is skipped."""
        start = keys.start_in(BLOCK)
        with self.kernel.loop("block", round_up_quotient(keys.stop, BLOCK) - start) as block:
            yield start + block

    def in_block(self, keys: Range, block: Scalar) -> Range:
        """``keys`` relative to a block, without those before and after it; with none, its stop is not above its
        start.
        """
        kernel, first = self.kernel, block * BLOCK
        start = 0 if isinstance(keys.start, int) else kernel.let("start", maximum(keys.start - first, 0))
        return Range(start, kernel.let("stop", minimum(keys.stop - first, BLOCK)))

    def hold(self, queries: Queries) -> None:
        """Read the queries of all blocks that follow."""
        self._products.hold(queries)

    def key_block(self, count: int) -> BlockScores:
        pages = (self._pages, self._products, self._page_ids)
        return KeyBlock(
            self.kernel, self.isa, self._stored_heads, self._scores, *pages, count, self._bias, self._by_distance
        )

    def running(self, query_heads: list[Scalar]) -> Running:
        """The state of a query of each of these heads, before all blocks."""
        sinks = [] if self._sinks is None else [self._sinks[head] for head in query_heads]
        return Running(self.kernel, self.isa, self.heads, len(query_heads), sinks)

    def store(self, running: Running, i: int, row: Scalar, head: Scalar) -> None:
        for start, lanes in pieces(self.heads.head_dim, self.isa.lanes):
            self._y[row, head, ramp(start, lanes)] = cast(
                running.result(i, start, lanes), with_lanes(self.heads.activation, lanes)
            )


def attend(arguments: Arguments, rows: list[Scalar], stop: Scalar, kv_head: Scalar, sequence: Scalar) -> None:
    """The query heads of a kv head for neighbouring rows of one sequence; only rows before ``stop`` are stored."""
    kernel, group = arguments.kernel, arguments.heads.group
    first_page = arguments.first_page(sequence)
    first_head = kernel.let("first_head", kv_head * group)
    queries = [(each, first_head + i) for each in rows for i in range(group)]
    visible = [arguments.visible(each, sequence) for each in rows]
    # Positions ascend, so the first row sees the first key and the last row the last one.
    keys = Range(visible[0].start, visible[-1].stop)
    block_keys = arguments.key_block(len(queries))
    running = arguments.running([head for _, head in queries])
    arguments.hold(queries)
    with arguments.each_block(keys) as block:
        # Earlier rows see fewer keys of the last block, or none, and later rows fewer of the first one. A block without
        # keys weighs 0.
        for i in range(len(queries)):
            mine = visible[i // group]
            block_keys.lengths[i] = minimum(mine.stop - block * BLOCK, BLOCK)
            if block_keys.starts is not None:
                block_keys.starts[i] = mine.start - block * BLOCK
        block_keys.compute(queries, kv_head, first_page, block, arguments.in_block(keys, block))
        with kernel.loop("query", len(queries)) as i:
            running.merge(i, block_keys.largest[i], block_keys.total[i], block_keys.sums_of(i))
    for i, (each, head) in enumerate(queries):
        with kernel.when(rows[0] + i // group < stop if len(rows) > 1 else True):
            arguments.store(running, i, each, head)
