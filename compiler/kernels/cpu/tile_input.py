"""A projection's input as its tiles of weights want it, and their dot products: integers for quantized weights, floats for others.

Rows are taken in blocks of ``tokens``. Rows beyond the last of the batch are whatever scratch holds; nobody looks at their sums.
"""

from __future__ import annotations

from itertools import product

from tvm import tirx

from ...expr import Expr
from ...quant.base import GROUP
from ...quant.layout import TILE_ROWS
from ..builder import Array, Scalar, cast, number, reinterpret, select, splat
from ..projection import Projection
from .builder import CpuKernelBuilder, Isa, of, pieces, ramp
from .integer_dot import State, integer_dot
from .math import fused, rounded
from .rows import each_vector, norm_row, rms_factor

# Rows are prepared in vectors of this many, whatever the level has, so that all levels sum squares in the same order.
LANES = 16
# A code is high * 128 + low: two signed bytes, the low one from -64 to 63. One byte alone, as is usual, takes half the time of large
# batches; but it was 1.4 % of the largest logit off on the demo model, where the self-test allows 0.1 %, and changed tokens.
LOW_BITS = 7
LARGEST = 127 << LOW_BITS
# Groups of weights are asked for so long before they are used: memory takes as long to answer as these take to be computed.
GROUPS_AHEAD = 16


class IntegerRows:
    """x as codes * scale, one scale a group of 32 columns, codes rounded to nearest, ties to even.

    Scratch: codes (blocks, groups, tokens, 2, 8) words of four bytes, the high parts first; scales (blocks, groups, tokens), of a normed
    row times 1 / rms; offsets (blocks, groups, tokens) int32, what the weights' zero adds to a group's dot product, negated.
    A dot product is the sum over groups of scale * weight scale * (codes . weight codes + offset), the integers being exact.
    """

    def __init__(self, kernel: CpuKernelBuilder, isa: Isa, facts: Projection, tokens: int) -> None:
        self._kernel, self._isa, self._facts, self._tokens = kernel, isa, facts, tokens
        self._groups = groups = -(-facts.columns // GROUP)
        self._words = {"q4": 4, "q8": 8}[facts.weight.kind]
        tiles = -(-facts.weight_rows // TILE_ROWS)
        self._x = kernel.buffer("x", (facts.batch, facts.columns), facts.x_dtype)
        self._norm = kernel.buffer("norm", (facts.columns,), "float32") if facts.norm_eps is not None else None
        self._weight = kernel.buffer("weight.q", (tiles, groups * self._words, TILE_ROWS), "uint32")
        self._weight_scales = kernel.buffer("weight.s", (tiles, groups, TILE_ROWS), facts.weight.scale_dtype)
        self._dot = integer_dot(kernel, isa, facts.weight)

    def declare_scratch(self) -> None:
        kernel, tokens, groups = self._kernel, self._tokens, self._groups
        blocks: Expr = ["ceildiv", self._facts.batch, tokens]
        self._codes = kernel.scratch("codes", (blocks, groups * tokens, 16), "float32", write=True)
        self._scales = kernel.scratch("scales", (blocks, groups * tokens), "float32", write=True)
        self._offsets = kernel.scratch("offsets", (blocks, groups * tokens), "float32", write=True)

    def prepare(self, row: Scalar) -> None:
        """Quantize a row of the input into scratch."""
        kernel, facts = self._kernel, self._facts
        block, token = kernel.let("block", row // self._tokens), kernel.let("token", row % self._tokens)
        factor = None
        if facts.norm_eps is not None:
            wide = Isa("any", LANES, 0)
            factor = rms_factor(kernel, wide, lambda start, lanes: self._load(row, start, lanes), facts.columns, facts.norm_eps)
        whole = facts.columns // GROUP
        with kernel.loop("group", whole) as group:
            halves = [self._normed(row, group * GROUP + half * LANES, LANES) for half in range(2)]
            self._quantize(block, kernel.let("place", group * self._tokens + token), halves, factor)
        if facts.columns % GROUP:
            halves = [self._padded(row, whole * GROUP + half * LANES) for half in range(2)]
            self._quantize(block, kernel.let("place", whole * self._tokens + token), halves, factor)

    def _load(self, row: Scalar, start: Scalar, lanes: int) -> Scalar:
        return cast(self._x[row, ramp(start, lanes)], of("float32", lanes))

    def _normed(self, row: Scalar, start: Scalar, lanes: int) -> Scalar:
        """Columns of a row times the norm's weight; 1 / rms is left to the scale."""
        x = self._load(row, start, lanes)
        return x if self._norm is None else x * self._norm[ramp(start, lanes)]

    def _padded(self, row: Scalar, start: int) -> Scalar:
        """LANES columns from ``start`` on, zeros beyond the last."""
        columns = [self._normed(row, start + i, 1) if start + i < self._facts.columns else number(0, "float32") for i in range(LANES)]
        return tirx.Shuffle(columns, [tirx.const(i, "int32") for i in range(LANES)])

    def _quantize(self, block: Scalar, place: Scalar, halves: list[Scalar], factor: Scalar | None) -> None:
        kernel = self._kernel
        halves = [kernel.let("x", half) for half in halves]
        # Magnitudes are in the order of their bits; NaN is above all of them, so the scale becomes NaN, and so does every sum.
        bits = [reinterpret(half, of("uint32", LANES)) & number(0x7FFFFFFF, of("uint32", LANES)) for half in halves]
        highest = tirx.call_llvm_pure_intrin("uint32", "llvm.vector.reduce.umax", tirx.max(*bits))
        largest = kernel.let("largest", reinterpret(kernel.let("highest", highest), "float32"))
        inverse = kernel.let("inverse", select(largest > 0, number(LARGEST, "float32") / largest, number(0, "float32")))
        integers, shift = of("int32", LANES), number(LOW_BITS, of("int32", LANES))
        totals = []
        for half, each in enumerate(halves):
            codes = kernel.let("codes", cast(rounded(each * splat(inverse, LANES)), integers))
            high = kernel.let("high", (codes + number(1 << (LOW_BITS - 1), integers)) >> shift)
            for part, values in enumerate((high, codes - (high << shift))):
                words = reinterpret(cast(values, of("int8", LANES)), of("float32", LANES // 4))
                self._codes[block, place, ramp(part * 8 + half * (LANES // 4), LANES // 4)] = words
            totals.append(codes)
        scale = largest * number(1 / LARGEST, "float32")
        self._scales[block, place] = scale if factor is None else scale * factor
        if self._dot.zero:
            offset = tirx.call_llvm_pure_intrin("int32", "llvm.vector.reduce.add", totals[0] + totals[1]) * -self._dot.zero
            self._offsets[block, place] = reinterpret(offset, "float32")

    def sums(self, tile: Scalar, block: Scalar, starts: list[int]) -> Array:
        """Dot products of a block's rows with the tile's rows from each of ``starts`` on: all vectors of the first row, of the next, ..."""
        kernel, dot, lanes, tokens = self._kernel, self._dot, self._isa.lanes, self._tokens
        sums = kernel.local("sums", tokens * len(starts), of("float32", lanes), fill=0)
        with kernel.loop("group", self._groups) as group:
            place = kernel.let("place", group * tokens)
            words = [group * self._words + word for word in range(self._words)]
            if starts[0] == 0:
                for word in words:
                    kernel.prefetch(self._weight, (tile, word + GROUPS_AHEAD * self._words, 0))
                kernel.prefetch(self._weight_scales, (tile, group + GROUPS_AHEAD, 0))
            at = [(token, start) for token in range(tokens) for start in starts]
            offsets = [self._offset(block, place + token) for token in range(tokens)]
            # The sums of the high and the low parts go side by side, so that a weight is needed once and waits in no register.
            states: list[dict[tuple[int, int], State]] = [
                {key: (number(0, of("int32", lanes)),) for key in at},
                {key: (splat(offsets[key[0]], lanes),) for key in at},
            ]
            quads = GROUP // 4 // self._words
            for number_of_word, word in enumerate(words):
                operands = {start: dot.operands(self._weight[tile, word, ramp(start, lanes)]) for start in starts}
                for i, token, part in product(range(quads), range(tokens), range(2)):
                    column = (part * self._words + number_of_word) * quads + i
                    x = reinterpret(self._codes[block, place + token, column], "int32")
                    for start in starts:
                        states[part][token, start] = dot.add(states[part][token, start], operands[start][i], x)
            high, low = ({key: dot.finish(state) for key, state in each.items()} for each in states)
            for part, start in enumerate(starts):
                scales = kernel.let("scales", cast(self._weight_scales[tile, group, ramp(start, lanes)], of("float32", lanes)))
                for token in range(tokens):
                    total = (high[token, start] << number(LOW_BITS, of("int32", lanes))) + low[token, start]
                    whole = cast(total, of("float32", lanes))
                    index = token * len(starts) + part
                    sums[index] = fused(whole, scales * splat(self._scales[block, place + token], lanes), sums[index])
        return sums

    def _offset(self, block: Scalar, place: Scalar) -> Scalar:
        return reinterpret(self._offsets[block, place], "int32") if self._dot.zero else tirx.const(0, "int32")


class FloatRows:
    """x as it is or normed, in scratch (rows, K), with zeros behind it up to whole groups. A dot product is one chain over the columns."""

    # Columns in a turn of the loop.
    UNROLL = 8

    def __init__(self, kernel: CpuKernelBuilder, isa: Isa, facts: Projection, tokens: int) -> None:
        self._kernel, self._isa, self._facts, self._tokens = kernel, isa, facts, tokens
        self._padded = -(-facts.columns // GROUP) * GROUP
        tiles = -(-facts.weight_rows // TILE_ROWS)
        self._x = kernel.buffer("x", (facts.batch, facts.columns), facts.x_dtype)
        self._norm = kernel.buffer("norm", (facts.columns,), "float32") if facts.norm_eps is not None else None
        self._weight = kernel.buffer("weight.w", (tiles, self._padded, TILE_ROWS), {"f16": "float16", "f32": "float32"}[facts.weight.kind])

    def declare_scratch(self) -> None:
        blocks: Expr = ["ceildiv", self._facts.batch, self._tokens]
        self._rows = self._kernel.scratch("x", (["mul", blocks, self._tokens], self._padded), "float32", write=True)

    def prepare(self, row: Scalar) -> None:
        """Copy a row of the input into scratch, normed where it is to be."""
        kernel, facts = self._kernel, self._facts
        for start, lanes in pieces(self._padded - facts.columns, LANES):
            self._rows[row, ramp(facts.columns + start, lanes)] = number(0, of("float32", lanes))
        if self._norm is not None and facts.norm_eps is not None:
            norm_row(kernel, Isa("any", LANES, 0), self._x, row, self._norm, facts.columns, facts.norm_eps, self._rows)
        else:

            def copy(start: Scalar, lanes: int) -> None:
                self._rows[row, ramp(start, lanes)] = cast(self._x[row, ramp(start, lanes)], of("float32", lanes))

            each_vector(kernel, facts.columns, LANES, copy)

    def sums(self, tile: Scalar, block: Scalar, starts: list[int]) -> Array:
        """See `IntegerRows.sums`."""
        kernel, lanes, tokens = self._kernel, self._isa.lanes, self._tokens
        sums = kernel.local("sums", tokens * len(starts), of("float32", lanes), fill=0)
        with kernel.loop("step", self._padded // self.UNROLL) as step:
            for i in range(self.UNROLL):
                column = step * self.UNROLL + i
                weights = [
                    kernel.let("weights", cast(self._weight[tile, column, ramp(start, lanes)], of("float32", lanes))) for start in starts
                ]
                for token in range(tokens):
                    x = splat(self._rows[block * tokens + token, column], lanes)
                    for part, each in enumerate(weights):
                        index = token * len(starts) + part
                        sums[index] = fused(each, x, sums[index])
        return sums
