"""linear over weights in tiles of 16 rows (`quant/layout.py`), for every weight format.

Rows that `prepare_rows.py` wrote to scratch, weight in planes (N/16, words, 16), bias -> y (batch, N).

One task: one or two tiles, which have 16 outputs each (for a gated projection, 16 of both halves), for as many rows as
a cache holds, ``tokens`` rows at a time. A vector holds 16 outputs of one row, or a part of them if vectors are
shorter. Columns are added group by group, so a row's sums do not depend on ``tokens`` or on other rows.
"""

from __future__ import annotations

from ...quant.layout import TILE_ROWS
from ..builder import Array, Kernel, Scalar, all_of, cast, minimum, size_bytes, truncated_quotient
from ..fold import Fold
from ..projection import Experts, Projection
from ..vectors import lanes_of, ramp, take_lanes, with_lanes
from .activations import MATHS
from .builder import CpuKernelBuilder, Isa, each_vector, pieces, round_up_quotient
from .tile_dots import LARGEST_SMALL_BLOCK, LINE_BYTES, FloatDots, IntegerDots

# The size of the prepared rows that every tile of weights processes together: half of a core's cache.
ROWS_BYTES = 256 << 10


def linear_tiles(name: str, *, isa: Isa, facts: Projection, tokens: int, bits: int | None) -> Kernel:
    """Correct for every batch; ``tokens`` 1 is for a single row. ``bits`` of the activations' codes; None if weights
    are floats.
    """
    kernel = CpuKernelBuilder(name)
    dots = FloatDots(kernel, isa, facts, tokens) if bits is None else IntegerDots(kernel, isa, facts, tokens, bits)
    result = Result(kernel, facts)
    batch = kernel.size(facts.batch)
    tiles = -(-result.outputs // TILE_ROWS)
    at_once = dots.vectors if tiles > 1 else min(dots.vectors, TILE_ROWS // isa.lanes)
    tiles_a_task = max(1, at_once * isa.lanes // TILE_ROWS)
    blocks = kernel.let("blocks", round_up_quotient(batch, tokens))
    at_once_blocks = max(1, ROWS_BYTES // (tokens * dots.row_bytes))
    with (
        kernel.loop("part", round_up_quotient(blocks, at_once_blocks)) as part,
        kernel.tasks("task", -(-tiles // tiles_a_task)) as task,
        kernel.loop("block_index", minimum(at_once_blocks, blocks - part * at_once_blocks)) as block_index,
    ):
        block = kernel.let("block", part * at_once_blocks + block_index)
        tile, stores_first = first_tile(kernel, task, tiles, tiles_a_task)
        for first in range(0, tiles_a_task * TILE_ROWS, at_once * isa.lanes):
            starts = [first + vector * isa.lanes for vector in range(at_once)]
            rows = [kernel.let("row", block * tokens + token) for token in range(tokens)]
            if tokens > LARGEST_SMALL_BLOCK:
                for row in rows:
                    result.prefetch(row, tile * TILE_ROWS + first, at_once * isa.lanes)
            sums = [dots.sums(tile + half * tiles, rows, starts, block_index) for half in range(result.halves)]
            for token, row in enumerate(rows):
                with kernel.when(True if tokens == 1 else row < batch):
                    for vector, start in enumerate(starts):
                        found = [each[token * at_once + vector] for each in sums]
                        with kernel.when(stores_first if start < TILE_ROWS else True):
                            result.store(row, tile + start // TILE_ROWS, start % TILE_ROWS, found)
    result.gate(isa)
    return kernel.finish()


def first_tile(kernel: CpuKernelBuilder, task: Scalar, tiles: int, tiles_a_task: int) -> tuple[Scalar, Scalar | bool]:
    """The first tile of a task, and whether this task stores its results. The last task may start with a tile of the
    task before, which stores them.
    """
    tile = kernel.let("tile", minimum(task * tiles_a_task, tiles - tiles_a_task))
    return tile, True if tiles % tiles_a_task == 0 else tile == task * tiles_a_task


class ChosenExperts:
    """The experts of an expert_linear's pairs. ``straddle``: an expert's rows do not begin with a tile."""

    def __init__(self, kernel: CpuKernelBuilder, facts: Projection, experts: Experts) -> None:
        self._kernel, self._experts = kernel, experts
        self.straddle = facts.weight_rows % TILE_ROWS != 0
        self._chosen = kernel.buffer("chosen", (experts.tokens, experts.chosen), "int32")

    def expert_of(self, pair: Scalar) -> Scalar:
        token, of_token = self._kernel.split(pair, self._experts.chosen, ("token", "of_token"))
        return self._kernel.let("expert", self._experts.index(self._chosen[token, of_token]))

    def input_row(self, pair: Scalar) -> Scalar:
        """The row of x that a pair reads."""
        if not self._experts.shares_rows:
            return pair
        return self._kernel.let("input_row", truncated_quotient(pair, self._experts.chosen))


class Result:
    """Finishes dot products with a projection's bias and what it stores.

    If a gated projection's halves, or an expert's rows, are not complete tiles, all dot products are stored in scratch
    first. ``outputs`` is the number of outputs that tiles cover in each of ``halves``.
    """

    def __init__(self, kernel: CpuKernelBuilder, facts: Projection, chosen: ChosenExperts | None = None) -> None:
        self._kernel, self._facts, self._chosen = kernel, facts, chosen
        self._apart = (facts.gated and facts.outputs % TILE_ROWS != 0) or (chosen is not None and chosen.straddle)
        self.halves = 2 if facts.gated and not self._apart else 1
        self.outputs = facts.weight_rows // self.halves
        # The first bias of the expert at hand.
        self._first_bias: Scalar | int = 0 if facts.gated or chosen is not None else facts.offset
        bias_length = facts.all_weight_rows if facts.gated or chosen is not None else facts.total_width
        self._bias = kernel.buffer("bias", (bias_length,), "float32") if facts.bias else None
        self._fold = Fold(kernel, MATHS, facts.store, facts.batch, facts.total_width, up_dtype=facts.up_dtype)
        self._y: Array = kernel.buffer("y", (facts.batch, facts.total_width), facts.y_dtype, write=True)
        if self._apart:
            self._sums = kernel.scratch("sums", (facts.batch, self.outputs), "float32", write=True)

    def of_expert(self, expert: Scalar) -> None:
        """The next results are those of an expert."""
        self._first_bias = expert * self._facts.weight_rows

    def store_shifted(self, row: Scalar, output: Scalar, sums: Scalar) -> None:
        """Store dot products apart, from an ``output`` on, those that exist."""
        values = self._kernel.let("sum", sums)
        for lane in range(lanes_of(sums)):
            at = output + lane
            with self._kernel.when(all_of(at >= 0, at < self.outputs)):
                self._sums[row, at] = take_lanes(values, range(lane, lane + 1))

    def store(self, row: Scalar, tile: Scalar, start: int, sums: list[Scalar]) -> None:
        """Finish a vector of results of a tile from ``start`` on, except those beyond the last output. A gated
        projection combines both halves.
        """
        kernel, lanes = self._kernel, lanes_of(sums[0])
        full_tiles, rest = divmod(self.outputs, TILE_ROWS)
        values = [kernel.let("sum", each) for each in sums]
        with kernel.when(True if rest == 0 else tile < full_tiles):
            self._finish(row, kernel.let("output", tile * TILE_ROWS + start), values)
        if rest > start:
            with kernel.when(tile == full_tiles):
                for offset, width in pieces(min(lanes, rest - start), lanes):
                    part = [take_lanes(each, range(offset, offset + width)) for each in values]
                    self._finish(row, full_tiles * TILE_ROWS + start + offset, part)

    def prefetch(self, row: Scalar, output: Scalar, count: int) -> None:
        """Prefetch the lines that ``count`` results of a row go to, and what is added to them. Rows are too far
        apart for the processor's own prefetcher.
        """
        for each in () if self._apart else (self._y, *self._fold.added):
            for start in range(0, count, LINE_BYTES // size_bytes(str(each.buffer.dtype))):
                self._kernel.prefetch(each, (row, output + (self._facts.offset + start)))

    def gate(self, isa: Isa) -> None:
        """Finish the results in scratch."""
        if self._apart:
            halves = (0, self._facts.outputs) if self._facts.gated else (0,)
            with self._kernel.tasks("row", self._facts.batch) as row:
                if self._chosen is not None:
                    self.of_expert(self._chosen.expert_of(row))

                def gate_part(start: Scalar, lanes: int) -> None:
                    both = [self._sums[row, ramp(start + half, lanes)] for half in halves]
                    self._store(row, start, [self._kernel.let("sum", each) for each in both])

                each_vector(self._kernel, self._facts.outputs, isa.lanes, gate_part)

    def _finish(self, row: Scalar, output: Scalar | int, sums: list[Scalar]) -> None:
        if self._apart:
            self._sums[row, ramp(output, lanes_of(sums[0]))] = sums[0]
        else:
            self._store(row, output, sums)

    def _store(self, row: Scalar, output: Scalar | int, sums: list[Scalar]) -> None:
        facts, lanes = self._facts, lanes_of(sums[0])
        if self._bias is not None:
            starts = [output + (self._first_bias + half * facts.outputs) for half in range(len(sums))]
            sums = [each + self._bias[ramp(start, lanes)] for each, start in zip(sums, starts, strict=True)]
        value = self._fold(row, output + facts.offset, *sums)
        self._y[row, ramp(output + facts.offset, lanes)] = cast(value, with_lanes(facts.y_dtype, lanes))
