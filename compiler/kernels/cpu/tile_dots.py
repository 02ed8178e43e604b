"""Dot products of prepared rows (`prepare_rows.py`) with the 16 rows of a tile of weights: integers for quantized
weights, or floats.

Rows are processed in blocks of ``tokens``. Rows beyond the batch contain arbitrary scratch data, and their sums are
ignored.
"""

from __future__ import annotations

from functools import reduce
from itertools import product

from ...ir.expr import Expr
from ...quant.base import GROUP, ROW
from ...quant.codes import UNIT_COLUMNS
from ...quant.layout import TILE_ROWS
from ..builder import Array, Scalar, cast, minimum, number, reinterpret, size_bytes
from ..projection import Projection
from ..vectors import ramp, splat, with_lanes
from .builder import CpuKernelBuilder, Isa
from .integer_dot import LOW_BITS, integer_dot, row_layout, zero_of
from .math import fused
from .packed import factor_planes
from .prepare_rows import num_scales
from .rows import LANES

# Groups of weights are prefetched this number of groups ahead: the latency of memory is about the time to compute
# these.
GROUPS_AHEAD = 16
# Blocks of few rows are for small batches, which the speed of memory limits.
LARGEST_SMALL_BLOCK = 4
LINE_BYTES = 64
# The same for weights that are floats, in lines.
LINES_AHEAD = 64
# With two lines, eight blocks prefetch two tiles of float32.
LINES_A_STEP = 2
# Four columns are a quad.
QUADS = GROUP // 4
ALL_QUADS = range(QUADS)


class IntegerDots:
    """A dot product is the sum over blocks of columns of scale * the sum over groups of weight scale * (codes . weight
    codes + offset).

    The expression in brackets is an exact integer. ``bits`` are those of the activations' codes. If all weights of a
    row share a scale, the integers of a block are added exactly before they become floats. With zero points, the
    expression is codes . weight codes - zero point * sum of codes; biases add bias * sum of codes.
    """

    def __init__(self, kernel: CpuKernelBuilder, isa: Isa, facts: Projection, tokens: int, bits: int) -> None:
        self._kernel, self._isa, self._tokens = kernel, isa, tokens
        self._groups = groups = -(-facts.columns // GROUP)
        assert facts.weight.bits is not None
        self._fmt = fmt = facts.weight
        tiles = -(-facts.all_weight_rows // TILE_ROWS)
        self._weight = kernel.buffer("weight.q", (tiles, groups * fmt.low_bits, TILE_ROWS), "uint32")
        self._high = (
            kernel.buffer("weight.h", (tiles, groups * fmt.high_bits, TILE_ROWS), "uint32") if fmt.high_bits else None
        )
        self._num_scales = fmt.scales_of(facts.columns)
        scales, self._weight_offsets, self._units = factor_planes(
            kernel, "weight", facts.all_weight_rows, facts.columns, fmt
        )
        assert scales is not None
        self._weight_scales = scales
        self._zero = zero_of(isa, fmt)
        self._dot, self._layout = integer_dot(kernel, isa, fmt, bits), row_layout(isa.name, fmt, bits)
        self.row_bytes = groups * self._layout.words * 4
        # Two sums per row and vector, and the unpacked weights. VNNI adds products in one instruction, so loads of
        # activations are the limit, and two tiles share them.
        tiles_at_once = 2 if isa.name == "vnni" and tokens > LARGEST_SMALL_BLOCK else 1
        self.vectors = vectors_at_once(isa, tiles_at_once, 2 * tokens, 6)
        rows = whole_blocks(facts, tokens)
        self._codes = kernel.scratch("codes", (rows, groups + 1, self._layout.words), "float32")
        self._scales = kernel.scratch("scales", (rows, num_scales(facts.columns, self._layout)), "float32")
        offsets = groups * fmt.scales_a_chunk
        self._offsets = kernel.scratch("offsets", (rows, offsets), "float32") if self._zero or fmt.offset else None

    def sums(self, tile: Scalar, rows: list[Scalar], starts: list[int], turn: Scalar) -> Array:  # noqa: ARG002
        """Dot products of ``tokens`` rows with the tile's rows from each of ``starts`` on: all vectors of the first
        row, of the next, ... Starts from TILE_ROWS on are in the next tile. ``turn`` is the number of blocks that have
        used this tile before.
        """
        kernel, lanes, groups, together = self._kernel, self._isa.lanes, self._groups, self._layout.scale_groups
        at = list(product(range(len(rows)), starts))
        sums = kernel.local("sums", len(at), with_lanes("float32", lanes), fill=0)
        if self._fmt.per_row:
            return self._sums_of_rows(tile, rows, starts, sums)
        if together == 1:
            with kernel.loop("group", groups) as group:
                for index, value, factor in self._terms(tile, rows, group, starts):
                    sums[index] = fused(
                        value, factor * splat(self._scales[rows[at[index][0]], group], lanes), sums[index]
                    )
            return sums
        with kernel.loop("scale", -(-groups // together)) as block_of_groups:
            first = kernel.let("first", block_of_groups * together)
            parts = kernel.local("parts", len(at), with_lanes("float32", lanes), fill=0)
            with kernel.loop(
                "offset", together if groups % together == 0 else minimum(together, groups - first)
            ) as offset:
                for index, value, factor in self._terms(tile, rows, kernel.let("group", first + offset), starts):
                    parts[index] = fused(value, factor, parts[index])
            for index, (token, _) in enumerate(at):
                sums[index] = fused(parts[index], splat(self._scales[rows[token], block_of_groups], lanes), sums[index])
        return sums

    def _sums_of_rows(self, tile: Scalar, rows: list[Scalar], starts: list[int], sums: Array) -> Array:
        """`sums` of weights whose rows have one scale each.

        The sum of a block of columns that share a scale of the activations fits in 32 bits: 128 products of at most
        32,512 and 255 are below 2^31.
        """
        kernel, lanes, groups, together = self._kernel, self._isa.lanes, self._groups, self._layout.scale_groups
        at = list(product(range(len(rows)), starts))
        floats = with_lanes("float32", lanes)
        scales = {
            start: kernel.let("scales", cast(self._weight_scales[tile_rows(tile, start, 0, lanes)], floats))
            for start in starts
        }

        def add_block(block: Scalar, first: Scalar, count: int) -> None:
            totals: Array | list[Scalar]
            if len(rows) > 1:
                totals = kernel.local("totals", len(at), with_lanes("int32", lanes), fill=0)
                with kernel.loop("offset", count) as offset:
                    found = self._of_group(tile, rows, kernel.let("group", first + offset), starts)
                    for index, total in enumerate(found):
                        totals[index] = totals[index] + total
            else:
                # Unrolled, so that the instructions of several groups, each a chain, run side by side.
                groups = [kernel.let("group", first + offset) for offset in range(count)]
                found = [self._of_group(tile, rows, group, starts) for group in groups]
                totals = [reduce(lambda one, other: one + other, each) for each in zip(*found, strict=True)]
            for index, (token, start) in enumerate(at):
                # The compiler could fuse the product of the complete sum with an addition, and then its bits would
                # depend on the level.
                scale = scales[start] * splat(self._scales[rows[token], block], lanes)
                sums[index] = fused(cast(totals[index], floats), scale, sums[index])

        with kernel.loop("block", groups // together) as block:
            add_block(block, kernel.let("first", block * together), together)
        if groups % together:
            add_block(
                number(groups // together, "int32"), number(groups // together * together, "int32"), groups % together
            )
        return sums

    def _terms(
        self, tile: Scalar, rows: list[Scalar], group: Scalar, starts: list[int]
    ) -> list[tuple[int, Scalar, Scalar]]:
        """The terms that a group adds to the sums: the index of a sum, and two factors of a product."""
        halves = self._fmt.scales_a_chunk
        terms = []
        for half in range(halves):
            quads = range(half * QUADS // halves, (half + 1) * QUADS // halves)
            terms += self._scaled(tile, rows, group, starts, quads)
        return terms

    def _scaled(
        self, tile: Scalar, rows: list[Scalar], group: Scalar, starts: list[int], quads: range
    ) -> list[tuple[int, Scalar, Scalar]]:
        """`_terms` of those quads of a group that share scales."""
        kernel, lanes, fmt = self._kernel, self._isa.lanes, self._fmt
        floats = with_lanes("float32", lanes)
        index = self._scale_index(group, quads)
        ahead = (index + GROUPS_AHEAD * fmt.scales_a_chunk) * (fmt.factors_a_group if fmt.has_units else 1)
        for each in tiles_of(tile, starts):
            self._prefetch(self._weight_scales, (each, ahead, 0))
        totals = self._of_group(tile, rows, group, starts, quads)

        def factors(plane: Array, place: int) -> dict[int, Scalar]:
            at = index if self._units is None else index * fmt.factors_a_group + place
            found = {start: cast(plane[tile_rows(tile, start, at, lanes)], floats) for start in starts}
            if self._units is not None:
                unit = index // (UNIT_COLUMNS // fmt.group) * fmt.factors_a_group + place
                # An exact product, so it is the same however it is computed.
                found = {
                    start: each * cast(self._units[tile_rows(tile, start, unit, lanes)], floats)
                    for start, each in found.items()
                }
            return {start: kernel.let("factors", each) for start, each in found.items()}

        scales = factors(self._weight_scales, 0)
        found = list(enumerate(product(range(len(rows)), starts)))
        terms = [(i, cast(totals[i], floats), scales[start]) for i, (_, start) in found]
        if self._weight_offsets is None or self._offsets is None:
            return terms
        # On this level, codes of weights may be signed, that is, lower by `shift`.
        shift = fmt.zero - self._zero
        offsets, offset_index = factors(self._weight_offsets, 1), self._offset_index(group, quads)
        sums = [kernel.let("sum", splat(self._offsets[row, offset_index], lanes)) for row in rows]
        if fmt.offset == "z":
            zeros = {start: number(shift, floats) - each for start, each in offsets.items()}
            return [(i, fused(zeros[start], sums[row], terms[i][1]), scales[start]) for i, (row, start) in found]
        if shift:
            offsets = {start: fused(scales[start], number(shift, floats), each) for start, each in offsets.items()}
        return terms + [(i, sums[row], offsets[start]) for i, (row, start) in found]

    def _prefetch(self, plane: Array, index: tuple[Scalar, Scalar, int]) -> None:
        """A single row reads each weight once. On Zen 5, a token of Qwen3-0.6B took 0.92 of the time when weights
        passed the second-level cache by, which then still had what the rest of a step reads.
        """
        self._kernel.prefetch(plane, index, once=self._tokens == 1)

    def _scale_index(self, group: Scalar, quads: range) -> Scalar:
        fmt = self._fmt
        if fmt.scales_a_chunk == 2:
            # A row may end in the first half of a group.
            index = group * 2 + quads.start * 2 // QUADS
            return minimum(index, self._num_scales - 1) if self._num_scales % 2 else index
        if fmt.group == ROW:
            return number(0, "int32")
        return group if fmt.group == GROUP else group // (fmt.group // GROUP)

    def _offset_index(self, group: Scalar, quads: range) -> Scalar:
        return group if self._fmt.scales_a_chunk == 1 else group * 2 + quads.start * 2 // QUADS

    def _of_group(
        self, tile: Scalar, rows: list[Scalar], group: Scalar, starts: list[int], quads: range = ALL_QUADS
    ) -> list[Scalar]:
        """The expression in brackets for some quads of one group, in the order of `sums`; without the zero points."""
        dot, lanes, fmt = self._dot, self._isa.lanes, self._fmt
        integers = with_lanes("int32", lanes)
        quads_a_word = 8 // fmt.low_bits
        words = range(quads.start // quads_a_word, quads.stop // quads_a_word)
        for each in tiles_of(tile, starts):
            for word in words:
                self._prefetch(self._weight, (each, group * fmt.low_bits + word + GROUPS_AHEAD * fmt.low_bits, 0))
            if self._high is not None and quads.start == 0:
                self._prefetch(self._high, (each, group * fmt.high_bits + GROUPS_AHEAD * fmt.high_bits, 0))
        at = list(product(range(len(rows)), starts))
        # The sums of high and low parts are computed together, so that a weight is loaded once and does not occupy a
        # register.
        parts = self._layout.parts
        offset_index = self._offset_index(group, quads)
        offsets = {key: splat(self._offset(rows[key[0]], offset_index), lanes) for key in at}
        totals = [
            {key: dot.start(offsets[key] if part == parts - 1 else number(0, integers)) for key in at}
            for part in range(parts)
        ]
        for word in words:
            operands = {start: self._operands(tile, group, word, start) for start in starts}
            count = len(operands[starts[0]])
            for operand, token, part in product(range(count), range(len(rows)), range(parts)):
                index = (part * fmt.low_bits + word) * count + operand
                x = reinterpret(self._codes[rows[token], group, index], "int32")
                for start in starts:
                    totals[part][token, start] = dot.add(totals[part][token, start], operands[start][operand], x)
        found = []
        for key in at:
            total = dot.finish(totals[-1][key], offsets[key])
            if parts == 2:
                total = total + (totals[0][key] << number(LOW_BITS, integers))
            found.append(total)
        return found

    def _operands(self, tile: Scalar, group: Scalar, word: int, start: int) -> list[Scalar]:
        """The operands of a word of a group, for rows of the tile from ``start`` on."""
        fmt, lanes = self._fmt, self._isa.lanes
        low = self._weight[tile_rows(tile, start, group * fmt.low_bits + word, lanes)]
        if self._high is None:
            return self._dot.operands(low, None, 0)
        quads_a_word = 8 // fmt.high_bits
        first = word * (8 // fmt.low_bits)
        high = self._high[tile_rows(tile, start, group * fmt.high_bits + first // quads_a_word, lanes)]
        return self._dot.operands(low, self._kernel.let("high", high), first % quads_a_word)

    def _offset(self, row: Scalar, offset_index: Scalar) -> Scalar:
        """The contribution of the code for 0, without zero points or biases."""
        if self._offsets is None or self._fmt.offset:
            return number(0, "int32")
        return reinterpret(self._offsets[row, offset_index], "int32")


class FloatDots:
    """A dot product is one chain over the columns."""

    # The number of columns per iteration.
    UNROLL = 8

    def __init__(self, kernel: CpuKernelBuilder, isa: Isa, facts: Projection, tokens: int) -> None:
        self._kernel, self._isa, self._tokens = kernel, isa, tokens
        self._columns = -(-facts.columns // GROUP) * GROUP
        tiles = -(-facts.all_weight_rows // TILE_ROWS)
        self._weight = kernel.buffer(
            "weight.w", (tiles, self._columns, TILE_ROWS), {"f16": "float16", "f32": "float32"}[facts.weight.kind]
        )
        # The columns of a cache line.
        self._line_columns = LINE_BYTES // (TILE_ROWS * size_bytes(str(self._weight.buffer.dtype)))
        self.row_bytes = self._columns * 4
        # A sum per row and vector, the vectors of weights, and an element of a row.
        self.vectors = vectors_at_once(isa, 2 if tokens > 1 else 1, tokens + 1, 1)
        self._rows = kernel.scratch("x", (whole_blocks(facts, tokens), self._columns + LANES), "float32")

    def sums(self, tile: Scalar, rows: list[Scalar], starts: list[int], turn: Scalar) -> Array:
        """See `IntegerDots.sums`."""
        kernel, lanes, tokens = self._kernel, self._isa.lanes, self._tokens
        sums = kernel.local("sums", tokens * len(starts), with_lanes("float32", lanes), fill=0)
        steps = self._columns // self.UNROLL
        with kernel.loop("step", steps) as step:
            if tokens > 1:
                self._prefetch_next(tile, starts, turn * steps + step)
            else:
                self._prefetch_ahead(tile, step)
            for i in range(self.UNROLL):
                column = step * self.UNROLL + i
                loaded = (self._weight[tile_rows(tile, start, column, lanes)] for start in starts)
                weights = [kernel.let("weights", cast(each, with_lanes("float32", lanes))) for each in loaded]
                for token in range(tokens):
                    x = splat(self._rows[rows[token], column], lanes)
                    for part, each in enumerate(weights):
                        index = token * len(starts) + part
                        sums[index] = fused(each, x, sums[index])
        return sums

    def _prefetch_ahead(self, tile: Scalar, step: Scalar) -> None:
        """Prefetch as many lines as a step reads. A single row reads each weight once."""
        columns = self._line_columns
        for column in range(0, self.UNROLL, columns):
            ahead = step * self.UNROLL + (column + LINES_AHEAD * columns)
            self._kernel.prefetch(self._weight, (tile, ahead, 0), once=True)

    def _prefetch_next(self, tile: Scalar, starts: list[int], step: Scalar) -> None:
        """Prefetch some cache lines of the next tiles in each step of every block, so that all are in the cache after a
        few blocks. A prefetch beyond the weights has no effect.
        """
        columns = self._line_columns
        tiles = tiles_of(tile, starts)
        lines = LINES_A_STEP // len(tiles)
        for each, line in product(tiles, range(lines)):
            self._kernel.prefetch(self._weight, (each + len(tiles), (step * lines + line) * columns, 0))


def vectors_at_once(isa: Isa, tiles: int, registers: int, more: int) -> int:
    """The number of vectors of ``tiles`` that are summed at once: all, or as many as there are registers for, if each
    needs ``registers``, and all of them ``more``.
    """
    vectors = tiles * TILE_ROWS // isa.lanes
    while vectors > 1 and registers * vectors + more > isa.registers:
        vectors //= 2
    return vectors


def tile_rows(tile: Scalar, start: int, word: Scalar | int, lanes: int) -> tuple[Scalar, Scalar | int, Scalar]:
    """The index of a vector of a tile's rows from ``start`` on, which may be in the next tile, in a plane of words."""
    return tile + start // TILE_ROWS, word, ramp(start % TILE_ROWS, lanes)


def tiles_of(tile: Scalar, starts: list[int]) -> list[Scalar]:
    """The tiles whose first rows are among the vectors from ``starts`` on."""
    return [tile + start // TILE_ROWS for start in starts if start % TILE_ROWS == 0]


def whole_blocks(facts: Projection, tokens: int) -> Expr:
    """The number of rows of a batch, rounded up to complete blocks."""
    return ["mul", ["ceildiv", facts.input_rows, tokens], tokens]
