"""linear for one to four input rows on tensor cores: weights are the left operand, 16 rows of them a tile.

A matrix product has eight columns, of which input rows need few. So each of the four threads that share a weight row
reads a chunk of 32 columns of its own, and the product's columns hold each of two input rows four times, every time
with zeros for all chunks but one: the sums of four groups of weights arrive in different columns, and are multiplied by
their scales in float32. Two more rows are a second product with the same weights. Codes become float16 by their bits
alone (`chunk_codes`).

One warp: ``tiles`` times 16 weight rows (of each half of a gated projection), and a contiguous range of the columns. It
scales the input of its range by a power of two (as `rows16` does, unless the input is float16 and has no norm), rounds
it to float16 and leaves it in shared memory, for which it waits for no other warp. A thread copies its own weights
asynchronously to shared memory, ``stages`` rounds of 128 columns ahead; the first copies start before the kernel waits
for the previous one.
One workgroup: ``warps`` warps side by side along the columns, whose sums are added in order. With ``splits``, several
workgroups share the columns of a tile: they leave their sums in scratch, and the last one to arrive adds them, in the
order of the columns.
Needs: sm_80. Sums are float32; an RMSNorm is fused as a sum of squares.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ...ir.expr import Expr
from ...quant.kernel_format import WeightFormat
from ..builder import (
    Array,
    Kernel,
    KernelBuilder,
    Scalar,
    address_of,
    all_of,
    guard_below,
    magnitude,
    maximum,
    minimum,
    number,
    result_of,
    select,
)
from ..maths import rms_factor
from ..projection import Projection, ProjectionArguments
from ..vectors import lane_of, splat, sum_lanes, vector
from .chunk_codes import ChunkCodes, GroupFactors, remainders_of, slot_bytes
from .functions import (
    arrive,
    commit_copies,
    multiply_tiles,
    pair,
    pair_sum,
    unknown,
    wait_for_older_copies,
    wait_for_previous_kernel,
    warp_barrier,
    warp_max,
)
from .linear_async import added
from .rows16 import CHUNK_OCTETS, OCTETS, TILE_ROWS, blocks_of, scale_of

WARP = 32
DTYPE = "float16"
# Octets of zeros of each warp, and the first one that is read: it shares no bank with those of the input at that time.
ZEROS, FIRST_ZERO = 8, 2
# The most quads of the input that a thread keeps in registers between its two passes; with more, it reads them again.
MAX_QUADS = 16


@dataclass(frozen=True, slots=True)
class FewShape:
    """``x_rows`` 1, 2 or 4 input rows; see above for the other parameters."""

    warps: int
    tiles: int
    stages: int
    x_rows: int = 1
    splits: int = 1

    @property
    def dtype(self) -> str:
        """That of the operands."""
        return DTYPE

    @property
    def pairs(self) -> int:
        """The products of a tile of weights, each with two input rows."""
        return -(-self.x_rows // 2)

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def outputs(self) -> int:
        return self.tiles * TILE_ROWS

    def rounds(self, columns: int) -> int:
        """The blocks of 128 columns of a warp."""
        return -(-blocks_of(columns) // (self.warps * self.splits))


def supports(facts: Projection) -> bool:
    """Any weights but float32. What a projection loads is nothing, a rounding, or an RMS norm."""
    plain = not facts.load or (len(facts.load) == 1 and (facts.norm or facts.load[0]["op"] == "fake_quantize"))
    return bool(plain) and facts.experts is None and facts.weight.kind != "f32" and not facts.weight.has_units


def shared_bytes(facts: Projection, shape: FewShape) -> int:
    """The shared memory of a kernel."""
    halves, items = 2 if facts.gated else 1, shape.outputs * shape.x_rows
    slots = shape.stages * halves * shape.tiles * 2 * shape.threads * slot_bytes(facts.weight, facts.columns)
    octets = shape.warps * (shape.rounds(facts.columns) * shape.x_rows * OCTETS + ZEROS)
    return slots + 16 * octets + 4 * shape.warps * (halves * items + shape.x_rows) + 4 * (shape.splits > 1)


class FewInput:
    """A warp's range of the input rows as pairs of float16 in shared memory, and of zeros."""

    def __init__(
        self, kernel: KernelBuilder, arguments: ProjectionArguments, shape: FewShape, warp: Scalar, lane: Scalar
    ) -> None:
        facts = arguments.facts
        self._kernel, self._arguments, self._x_rows, self._lane = kernel, arguments, shape.x_rows, lane
        self.pairs = shape.pairs
        self._rounds = shape.rounds(facts.columns)
        self._octets = self._rounds * OCTETS
        self._turns = -(-self._octets // WARP)
        # Any other values may exceed float16's range.
        self._scales = facts.x_dtype != "float16" or facts.norm is not None
        self._reach = shape.warps * shape.splits * self._octets * 2
        region = self._octets * shape.x_rows + ZEROS
        self._tile = kernel.shared("x_tile", (shape.warps * region,), "uint32x4")
        self._start = kernel.let("region", warp * region)
        self._zeros = self._start + self._octets * shape.x_rows
        self.words = kernel.local("x_words", shape.pairs * 4 * CHUNK_OCTETS, "uint32")
        self._loaded = kernel.local("x_loaded", 1, "uint32x4")
        norm = facts.norm is not None
        self._squares = [kernel.local("squares", 1, "float32x4", fill=0) for _ in range(shape.x_rows)] if norm else []
        # The factors of the rows' sums.
        self.factors: list[Scalar] = []

    @property
    def squares(self) -> list[Scalar]:
        """The thread's part of the sum of squares of each row."""
        return [sum_lanes(each[0]) for each in self._squares]

    def fill(self, x_rows: list[Scalar], first_block: Scalar) -> None:
        """All threads of the warp together."""
        kernel, held = self._kernel, 2 * self._turns <= MAX_QUADS
        first_octet = kernel.let("first_octet", first_block * OCTETS)
        values = kernel.local("values", 2 * self._turns if held and self._scales else 2, "float32x4", fill=0)
        with kernel.when(self._lane < ZEROS):
            self._tile[self._zeros + self._lane] = number(0, "uint32x4")
        for r, row in enumerate(x_rows):
            scale = None
            if self._scales:
                largest = kernel.local("largest", 1, "float32", fill=0)
                for turn in range(self._turns):
                    with kernel.when(self._inside(turn)):
                        for half in range(2):
                            at = 2 * turn + half if held else half
                            values[at] = self._quad(row, first_octet, turn, half, r)
                            for lane in range(4):
                                largest[0] = maximum(largest[0], magnitude(lane_of(values[at], lane)))
                largest[0] = warp_max(largest[0])
                scale, factor = scale_of(kernel, largest[0])
                self.factors.append(kernel.let("x_factor", factor))
            for turn in range(self._turns):
                with kernel.when(self._inside(turn)):
                    scaled = []
                    for half in range(2):
                        at = 2 * turn + half if held and self._scales else half
                        if not held or not self._scales:
                            values[at] = self._quad(row, first_octet, turn, half)
                        value = values[at] if scale is None else values[at] * splat(scale)
                        scaled.append(kernel.let("scaled", value))
                    pairs = [
                        pair(DTYPE, lane_of(each, low), lane_of(each, low + 2)) for each in scaled for low in (0, 1)
                    ]
                    item = kernel.let("item", self._lane + turn * WARP)
                    place = (item // OCTETS * self._x_rows + r) * OCTETS + item % OCTETS
                    self._tile[self._start + place] = vector(*pairs)
        warp_barrier()

    def _inside(self, turn: int) -> Scalar | bool:
        return True if (turn + 1) * WARP <= self._octets else self._lane + turn * WARP < self._octets

    def _quad(self, row: Scalar, first_octet: Scalar, turn: int, half: int, squared: int | None = None) -> Scalar:
        """A quad of a row, times the norm's weights; it is added to the squares of the row ``squared``."""
        arguments, kernel = self._arguments, self._kernel
        index = kernel.let("quad", (first_octet + self._lane + turn * WARP) * 2 + half)
        value = kernel.let("value", arguments.x.quad(row, index, self._reach))
        if arguments.norm is None:
            return value
        if squared is not None:
            self._squares[squared][0] = self._squares[squared][0] + value * value
        return value * arguments.norm.quad(index, self._reach)

    def choose(self, member: Scalar, quarter: Scalar) -> None:
        """Column ``member`` of a product has one chunk, ``member`` % 4, of row ``member`` // 4 of its pair."""
        own = all_of(member % CHUNK_OCTETS == quarter, member < 4 * self._x_rows if self._x_rows == 1 else True)
        begin = self._start + member // 4 * OCTETS + quarter * CHUNK_OCTETS
        self._first = self._kernel.let("first_x", select(own, begin, self._zeros + FIRST_ZERO))
        self._step = self._kernel.let("x_step", select(own, self._x_rows * OCTETS, 0))
        self._pair_step = self._kernel.let("pair_step", select(own, 2 * OCTETS, 0)) if self.pairs > 1 else 0

    def load(self, index: Scalar) -> None:
        """Read the four octets of a round."""
        for pair_index in range(self.pairs):
            begin = self._kernel.let("begin_x", self._first + index * self._step + pair_index * self._pair_step)
            for octet in range(CHUNK_OCTETS):
                self._loaded[0] = self._tile[begin + octet]
                for word in range(4):
                    self.words[(pair_index * CHUNK_OCTETS + octet) * 4 + word] = lane_of(self._loaded[0], word)

    def words_of(self, pair_index: int, octet: int, step: int) -> Scalar:
        """The address of the operand of one of the two products of an octet."""
        return address_of(self.words, (pair_index * CHUNK_OCTETS + octet) * 4 + step * 2)


class Products:
    """A round's products of a warp's weights with its input: a register for each weight row, and each of two chunks of
    a thread, of a group.
    """

    def __init__(self, kernel: KernelBuilder, fmt: WeightFormat, x: FewInput, codes: ChunkCodes, tiles: int) -> None:
        self._fmt, self._x, self._codes, self._tiles = fmt, x, codes, tiles
        self._remainders = remainders_of(fmt)
        self._sums = kernel.local("sums", x.pairs * tiles * 4, "float32")
        self._begin = kernel.local("begin_sums", x.pairs * 4, "float32")
        self._inputs = kernel.local("input_sums", x.pairs * 4, "float32") if fmt.offset else None
        self._pairs = kernel.local("pairs", 8, "uint32")
        self._a = kernel.local("a", 4, "uint32")
        self._same: dict[int, Array] = {}
        for value in sorted({-each for each in self._remainders if each} | ({1} if fmt.offset else set())):
            (bits,) = struct.unpack("<H", struct.pack("<e", value))
            self._same[value] = kernel.local("same_pairs", 4, "uint32")
            for word in range(4):
                self._same[value][word] = unknown(number(bits * 0x10001, "uint32"))

    def multiply(self, group: int) -> None:
        """Set the sums to those of a group of each chunk."""
        count = CHUNK_OCTETS // self._fmt.scales_a_chunk
        octets = range(group * count, (group + 1) * count)
        for i in range(self._x.pairs * 4):
            self._begin[i] = 0
        for octet in octets:
            for step, remainder in enumerate(self._remainders):
                if remainder:
                    self._add(self._begin, 1, 0, self._same[-remainder], octet, step)
        if self._inputs is not None:
            for i in range(self._x.pairs * 4):
                self._inputs[i] = 0
            for octet in octets:
                for step in range(2):
                    self._add(self._inputs, 1, 0, self._same[1], octet, step)
        for i in range(self._x.pairs * self._tiles * 4):
            self._sums[i] = self._begin[i // (self._tiles * 4) * 4 + i % 4]
        for octet in octets:
            for tile in range(self._tiles):
                for below in range(2):
                    self._codes.unpack(tile * 2 + below, octet, address_of(self._pairs, 4 * below))
                for step in range(2):
                    for word in range(4):
                        self._a[word] = self._pairs[word % 2 * 4 + step * 2 + word // 2]
                    self._add(self._sums, self._tiles, tile, self._a, octet, step)

    def _add(self, sums: Array, tiles: int, tile: int, a: Array, octet: int, step: int) -> None:
        """Add to a tile's sums of each pair of input rows, which has ``tiles``."""
        for pair_index in range(self._x.pairs):
            place = address_of(sums, (pair_index * tiles + tile) * 4)
            multiply_tiles(DTYPE, place, address_of(a, 0), self._x.words_of(pair_index, octet, step))

    def sum_of(self, pair_index: int, row: int, chunk: int) -> tuple[Scalar, Scalar | None]:
        """The sum of a weight row and a chunk, and that of the chunk's input if the format has offsets."""
        inputs = None if self._inputs is None else self._inputs[pair_index * 4 + chunk]
        place = (pair_index * self._tiles + row // 2) * 4 + row % 2 * 2 + chunk
        return self._sums[place], inputs


class SplitItems:
    """The sums of the workgroups of each tile, in scratch, and how many have arrived."""

    def __init__(self, kernel: KernelBuilder, facts: Projection, shape: FewShape, column_blocks: int) -> None:
        self._kernel, self._splits = kernel, shape.splits
        tiles: Expr = ["mul", ["ceildiv", facts.batch, shape.x_rows], column_blocks]
        items = shape.outputs * shape.x_rows * (2 if facts.gated else 1)
        self._sums = kernel.scratch("few_sums", (tiles, shape.splits, items), "float32", write=True)
        self._arrivals = kernel.zeroed_scratch("few_arrivals", (tiles,))

    def leave(self, tile: Scalar, split: Scalar, item: Scalar, value: Scalar) -> None:
        self._sums[tile, split, item] = value

    def arrived(self, thread: Scalar, tile: Scalar) -> Scalar:
        """Whether all other workgroups of the tile have left their sums; then the counter becomes 0 again."""
        kernel = self._kernel
        before, last = kernel.local("before", 1, "uint32"), kernel.shared("last", (1,), "uint32")
        # All threads have written their sums before one of them arrives.
        kernel.barrier()
        with kernel.when(thread == 0):
            before[0] = arrive(address_of(self._arrivals, tile))
            last[0] = before[0]
            with kernel.when(before[0] == number(self._splits - 1, "uint32")):
                self._arrivals[tile] = number(0, "uint32")
        kernel.barrier()
        return kernel.let("is_last", last[0] == number(self._splits - 1, "uint32"))

    def total(self, tile: Scalar, item: Scalar) -> Scalar:
        return added(self._kernel, [self._sums[tile, split, item] for split in range(self._splits)])


def items_of(kernel: KernelBuilder, thread: Scalar, threads: int, count: int) -> Iterator[Scalar]:
    """The thread's share of ``count`` items."""
    for first in range(0, count, threads):
        item = kernel.let("item", thread + first)
        with kernel.when(True if first + threads <= count else item < count):
            yield item


def linear_few(name: str, facts: Projection, shape: FewShape) -> Kernel:
    assert supports(facts), facts
    assert shape.splits == 1 or facts.norm is None, "the sum of squares is over all columns"
    kernel = KernelBuilder(name)
    arguments = ProjectionArguments(kernel, facts, blocks=True)
    fmt, weight, halves = facts.weight, arguments.weight, 2 if facts.gated else 1
    rounds, tiles, splits, x_count = shape.rounds(facts.columns), halves * shape.tiles, shape.splits, shape.x_rows
    stages = min(shape.stages, rounds)
    # With a slot for every round, all copies start at once; otherwise one slot is in use while the others fill.
    ahead = stages if stages == rounds else stages - 1
    assert ahead >= 1, shape
    column_blocks, row_blocks = -(-facts.outputs // shape.outputs), ["ceildiv", facts.batch, x_count]
    sums_of_splits = SplitItems(kernel, facts, shape, column_blocks) if splits > 1 else None

    group_x, row_block = kernel.grid(column_blocks * splits, facts.batch if x_count == 1 else row_blocks)
    thread = kernel.threads(shape.threads)
    batch = kernel.size(facts.batch)
    warp, lane = kernel.let("warp", thread // WARP), kernel.let("lane", thread % WARP)
    member, quarter = kernel.let("member", lane // 4), kernel.let("quarter", lane % 4)
    column_block, split = (group_x, 0) if splits == 1 else (kernel.let("tile", group_x // splits), group_x % splits)
    first_output = kernel.let("first_output", column_block * shape.outputs)
    first_block = kernel.let("first_block", (warp if splits == 1 else split * shape.warps + warp) * rounds)
    weight_rows = []
    for half in range(halves):
        for row in range(0, shape.outputs, 8):
            output = first_output + row + member
            if facts.outputs % shape.outputs:
                output = minimum(output, facts.outputs - 1)
            weight_rows.append(kernel.let("weight_row", output + half * facts.outputs))
    # Whether the columns are all of complete rounds.
    whole = weight.chunks == 4 * rounds * shape.warps * splits
    codes = ChunkCodes(kernel, weight, fmt, weight_rows, stages, shape.threads, thread)
    factors = GroupFactors(kernel, weight, fmt, facts.columns, weight_rows, stages, shape.threads, thread, whole)

    def pair_of(index: Scalar | int) -> Scalar:
        return kernel.let("pair", (first_block + index) * 2 + quarter % 2)

    def start_copies(index: Scalar) -> None:
        chunk = (first_block + index) * 4 + quarter
        # Beyond the last chunk, a copy of it is multiplied by zeros of the input.
        codes.start_copies(index % stages, kernel.let("chunk", chunk if whole else minimum(chunk, weight.chunks - 1)))
        factors.start_copies(index % stages, pair_of(index))

    for index in range(ahead):
        start_copies(number(index, "int32"))
        commit_copies()
    wait_for_previous_kernel()

    x = FewInput(kernel, arguments, shape, warp, lane)
    x.choose(member, quarter)
    x.fill([kernel.let("x_row", minimum(row_block * x_count + i, batch - 1)) for i in range(x_count)], first_block)
    products = Products(kernel, fmt, x, codes, tiles)
    totals = kernel.local("totals", x.pairs * tiles * 2, "float32", fill=0)
    with kernel.loop("round", rounds) as index:
        wait_for_older_copies(ahead - 1)
        if ahead < rounds:
            with kernel.when(index + ahead < rounds):
                start_copies(kernel.let("next", index + ahead))
        commit_copies()
        slot = index % stages
        codes.load(slot)
        x.load(index)
        loaded = [factors.load(slot, row, pair_of(index)) for row in range(tiles * 2)]
        for group in range(fmt.scales_a_chunk):
            products.multiply(group)
            for at in range(x.pairs * tiles * 2):
                pair_index, row = divmod(at, tiles * 2)
                for chunk in range(2):
                    dot, inputs = products.sum_of(pair_index, row, chunk)
                    totals[at] = totals[at] + factors.weighted(loaded[row][chunk][group], dot, inputs)

    items = shape.outputs * x_count
    partial = kernel.shared("partial", (x_count, shape.warps, halves * shape.outputs), "float32")
    partial_squares = kernel.shared("partial_squares", (x_count, shape.warps), "float32")
    own_row = 0 if x_count == 1 else quarter // 2
    added_totals = kernel.local("added_totals", x.pairs * tiles * 2, "float32")
    for at in range(x.pairs * tiles * 2):
        total = totals[at]
        if x.factors:
            # The factors of the one or two rows of a pair.
            one, *other = x.factors[at // (tiles * 2) * 2 :][:2]
            total = total * (select(quarter < 2, one, other[0]) if other else one)
        added_totals[at] = pair_sum(total)
    with kernel.when(quarter == 0 if x_count == 1 else quarter % 2 == 0):
        for at in range(x.pairs * tiles * 2):
            pair_index, row = divmod(at, tiles * 2)
            partial[own_row + pair_index * 2, warp, row * 8 + member] = added_totals[at]
    for r, each in enumerate(x.squares):
        square = kernel.local("square", 1, "float32")
        square[0] = result_of("float32", "subgroupAdd", each)
        with kernel.when(lane == 0):
            partial_squares[r, warp] = square[0]
    kernel.barrier()

    def finish(item: Scalar, results: list[Scalar]) -> None:
        r, own = item // shape.outputs, item % shape.outputs
        row = kernel.let("row", minimum(row_block * x_count + r, batch - 1))
        if facts.norm is not None:
            squares = added(kernel, [partial_squares[r, each] for each in range(shape.warps)])
            inverse = kernel.let("inverse", rms_factor(squares, facts.columns, facts.norm["eps"]))
            results = [result * inverse for result in results]
        output = kernel.let("output", first_output + own)
        # A row beyond the last is a copy of it, and so is its result.
        arguments.store(kernel, row, output, results, guard_below(output, facts.outputs, shape.outputs))

    def result_of_warps(item: Scalar, half: int) -> Scalar:
        r, own = item // shape.outputs, item % shape.outputs + half * shape.outputs
        return added(kernel, [partial[r, each, own] for each in range(shape.warps)])

    if sums_of_splits is None:
        for item in items_of(kernel, thread, shape.threads, items):
            finish(item, [result_of_warps(item, half) for half in range(halves)])
        return kernel.finish()
    tile_index = kernel.let("tile_index", row_block * column_blocks + column_block)
    for item in items_of(kernel, thread, shape.threads, items):
        for half in range(halves):
            sums_of_splits.leave(tile_index, split, half * items + item, result_of_warps(item, half))
    with kernel.when(sums_of_splits.arrived(thread, tile_index)):
        for item in items_of(kernel, thread, shape.threads, items):
            finish(item, [sums_of_splits.total(tile_index, half * items + item) for half in range(halves)])
    return kernel.finish()
