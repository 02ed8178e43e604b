"""Dot products of prepared rows (`prepare_rows.py`) with the 16 rows of a tile of weights: integers for quantized
weights, or floats.

Rows are processed in blocks of ``tokens``. Rows beyond the batch contain arbitrary scratch data, and their sums are
ignored.
"""

from __future__ import annotations

from functools import reduce
from itertools import product

from ...ir.expr import Expr
from ...quant.base import GROUP
from ...quant.layout import TILE_ROWS
from ..builder import Array, Scalar, cast, minimum, number, reinterpret, splat
from ..projection import Projection
from .builder import CpuKernelBuilder, Isa, of, ramp
from .integer_dot import LOW_BITS, integer_dot, row_layout, zero_of
from .math import fused
from .prepare_rows import num_scales
from .rows import LANES

# Groups of weights are prefetched this far before they are used: memory takes as long to answer as these take to be
# computed.
GROUPS_AHEAD = 16


class IntegerDots:
    """A dot product is the sum over blocks of columns of scale * the sum over groups of weight scale * (codes . weight
    codes + offset).

    The expression in brackets is an exact integer. ``bits`` are those of the activations' codes. If all weights of a
    row share a scale, the integers of a block are added exactly before they become floats.
    """

    def __init__(self, kernel: CpuKernelBuilder, isa: Isa, facts: Projection, tokens: int, bits: int) -> None:
        self._kernel, self._isa, self._tokens = kernel, isa, tokens
        self._groups = groups = -(-facts.columns // GROUP)
        assert facts.weight.bits is not None
        self._words = words = facts.weight.bits
        self._group, self._per_row = facts.weight.group, facts.weight.per_row
        tiles = -(-facts.weight_rows // TILE_ROWS)
        self._weight = kernel.buffer("weight.q", (tiles, groups * words, TILE_ROWS), "uint32")
        scales = facts.weight.scales_of(facts.columns)
        self._weight_scales = kernel.buffer("weight.s", (tiles, scales, TILE_ROWS), facts.weight.scale_dtype)
        self._dot, self._layout = integer_dot(kernel, isa, facts.weight, bits), row_layout(isa.name, facts.weight, bits)
        self.row_bytes = groups * self._layout.words * 4
        rows = whole_blocks(facts, tokens)
        self._codes = kernel.scratch("codes", (rows, groups + 1, self._layout.words), "float32")
        self._scales = kernel.scratch("scales", (rows, num_scales(facts.columns, self._layout)), "float32")
        self._offsets = kernel.scratch("offsets", (rows, groups), "float32") if zero_of(isa, facts.weight) else None

    def sums(self, tile: Scalar, block: Scalar, starts: list[int]) -> Array:
        """Dot products of a block's rows with the tile's rows from each of ``starts`` on: all vectors of the first row,
        of the next, ...
        """
        kernel, lanes, tokens, groups, together = (
            self._kernel,
            self._isa.lanes,
            self._tokens,
            self._groups,
            self._layout.scale_groups,
        )
        rows = [kernel.let("row", block * tokens + token) for token in range(tokens)]
        at = list(product(range(tokens), starts))
        sums = kernel.local("sums", len(at), of("float32", lanes), fill=0)
        if self._per_row:
            return self._sums_of_rows(tile, rows, starts, sums)
        if together == 1:
            with kernel.loop("group", groups) as group:
                for index, (total, scale) in enumerate(self._scaled(tile, rows, group, starts)):
                    sums[index] = fused(
                        total, scale * splat(self._scales[rows[at[index][0]], group], lanes), sums[index]
                    )
            return sums
        with kernel.loop("scale", -(-groups // together)) as block_of_groups:
            first = kernel.let("first", block_of_groups * together)
            parts = kernel.local("parts", len(at), of("float32", lanes), fill=0)
            with kernel.loop(
                "offset", together if groups % together == 0 else minimum(together, groups - first)
            ) as offset:
                for index, (total, scale) in enumerate(
                    self._scaled(tile, rows, kernel.let("group", first + offset), starts)
                ):
                    parts[index] = fused(total, scale, parts[index])
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
        floats = of("float32", lanes)
        scales = {
            start: kernel.let("scales", cast(self._weight_scales[tile, 0, ramp(start, lanes)], floats))
            for start in starts
        }

        def add_block(block: Scalar, first: Scalar, count: int) -> None:
            totals: Array | list[Scalar]
            if len(rows) > 1:
                totals = kernel.local("totals", len(at), of("int32", lanes), fill=0)
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
                # A product of the whole sum could be fused with what is added to it, and then its bits would depend on
                # the level.
                scale = scales[start] * splat(self._scales[rows[token], block], lanes)
                sums[index] = fused(cast(totals[index], floats), scale, sums[index])

        with kernel.loop("block", groups // together) as block:
            add_block(block, kernel.let("first", block * together), together)
        if groups % together:
            add_block(
                number(groups // together, "int32"), number(groups // together * together, "int32"), groups % together
            )
        return sums

    def _scaled(
        self, tile: Scalar, rows: list[Scalar], group: Scalar, starts: list[int]
    ) -> list[tuple[Scalar, Scalar]]:
        """`_of_group` as floats, with the weights' scales."""
        kernel, lanes = self._kernel, self._isa.lanes
        floats = of("float32", lanes)
        index = group if self._group == GROUP else group // (self._group // GROUP)
        if starts[0] == 0:
            kernel.prefetch(self._weight_scales, (tile, index + GROUPS_AHEAD, 0))
        totals = self._of_group(tile, rows, group, starts)
        scales = {
            start: kernel.let("scales", cast(self._weight_scales[tile, index, ramp(start, lanes)], floats))
            for start in starts
        }
        at = product(range(len(rows)), starts)
        return [(cast(total, floats), scales[start]) for total, (_, start) in zip(totals, at, strict=True)]

    def _of_group(self, tile: Scalar, rows: list[Scalar], group: Scalar, starts: list[int]) -> list[Scalar]:
        """The expression in brackets for one group, in the order of `sums`."""
        kernel, dot, lanes = self._kernel, self._dot, self._isa.lanes
        integers = of("int32", lanes)
        words = [group * self._words + word for word in range(self._words)]
        if starts[0] == 0:
            for each in words:
                kernel.prefetch(self._weight, (tile, each + GROUPS_AHEAD * self._words, 0))
        at = list(product(range(len(rows)), starts))
        # The sums of high and low parts are computed together, so that a weight is loaded once and does not occupy a
        # register.
        parts = self._layout.parts
        offsets = {key: splat(self._offset(rows[key[0]], group), lanes) for key in at}
        totals = [
            {key: dot.start(offsets[key] if part == parts - 1 else number(0, integers)) for key in at}
            for part in range(parts)
        ]
        for word, index in enumerate(words):
            operands = {start: dot.operands(self._weight[tile, index, ramp(start, lanes)]) for start in starts}
            count = len(operands[starts[0]])
            for operand, token, part in product(range(count), range(len(rows)), range(parts)):
                x = reinterpret(self._codes[rows[token], group, (part * self._words + word) * count + operand], "int32")
                for start in starts:
                    totals[part][token, start] = dot.add(totals[part][token, start], operands[start][operand], x)
        found = []
        for key in at:
            total = dot.finish(totals[-1][key], offsets[key])
            if parts == 2:
                total = total + (totals[0][key] << number(LOW_BITS, integers))
            found.append(total)
        return found

    def _offset(self, row: Scalar, group: Scalar) -> Scalar:
        return number(0, "int32") if self._offsets is None else reinterpret(self._offsets[row, group], "int32")


class FloatDots:
    """A dot product is one chain over the columns."""

    # The number of columns per iteration.
    UNROLL = 8

    def __init__(self, kernel: CpuKernelBuilder, isa: Isa, facts: Projection, tokens: int) -> None:
        self._kernel, self._isa, self._tokens = kernel, isa, tokens
        self._columns = -(-facts.columns // GROUP) * GROUP
        tiles = -(-facts.weight_rows // TILE_ROWS)
        self._weight = kernel.buffer(
            "weight.w", (tiles, self._columns, TILE_ROWS), {"f16": "float16", "f32": "float32"}[facts.weight.kind]
        )
        self.row_bytes = self._columns * 4
        self._rows = kernel.scratch("x", (whole_blocks(facts, tokens), self._columns + LANES), "float32")

    def sums(self, tile: Scalar, block: Scalar, starts: list[int]) -> Array:
        """See `IntegerDots.sums`."""
        kernel, lanes, tokens = self._kernel, self._isa.lanes, self._tokens
        sums = kernel.local("sums", tokens * len(starts), of("float32", lanes), fill=0)
        with kernel.loop("step", self._columns // self.UNROLL) as step:
            for i in range(self.UNROLL):
                column = step * self.UNROLL + i
                loaded = (self._weight[tile, column, ramp(start, lanes)] for start in starts)
                weights = [kernel.let("weights", cast(each, of("float32", lanes))) for each in loaded]
                for token in range(tokens):
                    x = splat(self._rows[block * tokens + token, column], lanes)
                    for part, each in enumerate(weights):
                        index = token * len(starts) + part
                        sums[index] = fused(each, x, sums[index])
        return sums


def whole_blocks(facts: Projection, tokens: int) -> Expr:
    """The number of rows of a batch, rounded up to complete blocks."""
    return ["mul", ["ceildiv", facts.batch, tokens], tokens]
