"""linear and gated_linear for a few rows: weights stream through tensor cores once, without a kernel before.

One workgroup: tiles of 16 weight rows, one after the other (for a gated projection, eight rows of each half); there are
no more workgroups than a GPU runs at once, so that copies of weights are always in flight and the input is read and
rounded once for all tiles. The first copies start before the kernel waits for the previous one: only the input depends
on it. Each input row is scaled by a power of two, as in `rows16`, and stored in shared memory in the order in which
weights are unpacked; an RMSNorm is fused as a sum of squares.
One warp: every ``column_warps``-th block of 128 columns of a tile. It copies weights to slots of its own, which needs
no barrier, and unpacks them to the 16-bit operands of a tensor core, whose other operand are up to eight input rows.
The sums of the warps of a tile are added in shared memory, always in the same order.
Needs: sm_80.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...quant.kernel_format import WeightFormat
from ..builder import (
    Kernel,
    KernelBuilder,
    Scalar,
    address_of,
    lane_of,
    magnitude,
    maximum,
    minimum,
    number,
    result_of,
    splat,
    sum_lanes,
    vector,
)
from ..maths import rms_factor
from ..projection import Projection, ProjectionArguments, guard_below
from .coded_weights import bytes_of_row
from .functions import commit_copies, multiply_tiles, pair, wait_for_older_copies, wait_for_previous_kernel
from .linear_mma import CHUNK_LOADS, CHUNKS, Weights, is_plain, weights_of
from .linear_mma import supports as supports_weight
from .rows16 import OCTETS, blocks_of, scale_and_factor

WARP = 32
# Weight rows of a tensor core's tile, and the most input rows.
TILE_ROWS, MAX_X_ROWS = 16, 8
# Up to this number, the rounds of a tile are unrolled, so that their places are constants.
MAX_UNROLLED = 8


@dataclass(frozen=True, slots=True)
class StreamShape:
    """``warps`` of a workgroup, ``column_warps`` of them for each tile, ``stages`` slots of a warp, at most
    ``workgroups``, and ``x_rows`` input rows, at most two for each of the column warps. ``dtype`` is that of the 16-bit
    operands.
    """

    warps: int
    column_warps: int
    stages: int
    workgroups: int
    dtype: str
    x_rows: int = 1

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def groups(self) -> int:
        """Tiles that a workgroup computes at once."""
        return self.warps // self.column_warps

    def rounds(self, columns: int) -> int:
        """Blocks of a tile that a warp reads."""
        return -(-blocks_of(columns) // self.column_warps)

    def x_octets(self, columns: int) -> int:
        """Octets of an input row, with zeros up to the last block that a warp reads, and 64 bytes that put rows into
        different banks.
        """
        return self.rounds(columns) * self.column_warps * OCTETS + 4

    def shared_bytes(self, fmt: WeightFormat, columns: int) -> int:
        scale = 4 if fmt.scale_dtype and not fmt.per_row else 0
        plain = CHUNK_LOADS[fmt.kind] * 16 + scale if is_plain(fmt) else 0
        slots = self.stages * self.threads * 2 * (plain or bytes_of_row(fmt))
        sums = 2 * self.warps * self.x_rows * TILE_ROWS * 4
        return slots + sums + self.x_rows * (16 * self.x_octets(columns) + 8 * self.warps + 4)


def supports(facts: Projection) -> bool:
    return supports_weight(facts) and not facts.centered and facts.stream_eps is None


def tiles_of(facts: Projection) -> int:
    return -(-facts.outputs // (TILE_ROWS // 2 if facts.gated else TILE_ROWS))


def linear_stream(name: str, facts: Projection, shape: StreamShape) -> Kernel:
    assert shape.x_rows <= MAX_X_ROWS, shape
    kernel = KernelBuilder(name)
    stream = WeightStream(kernel, facts, shape)
    for index in range(stream.ahead):
        stream.start(index // stream.rounds, index % stream.rounds)
    wait_for_previous_kernel()
    stream.load_input()
    with kernel.loop("turn", stream.turns) as turn:
        stream.clear()
        if stream.rounds <= MAX_UNROLLED:
            for round_ in range(stream.rounds):
                stream.multiply(turn, round_)
        else:
            with kernel.loop("round", stream.rounds) as round_:
                stream.multiply(turn, round_)
        stream.store(turn)
    return kernel.finish()


class WeightStream:
    """The rounds of a warp, which are numbered over all of its tiles, and the phases of its work."""

    def __init__(self, kernel: KernelBuilder, facts: Projection, shape: StreamShape) -> None:
        self.kernel, self.facts, self.shape = kernel, facts, shape
        self.arguments = ProjectionArguments(kernel, facts, blocks=True)
        self.tiles, self.rounds = tiles_of(facts), shape.rounds(facts.columns)
        workgroups = min(shape.workgroups, -(-self.tiles // shape.groups))
        self.stride = workgroups * shape.groups
        self.ahead = shape.stages - 1
        workgroup, self.row_block = kernel.grid(workgroups, ["ceildiv", facts.batch, shape.x_rows])
        thread = self.thread = kernel.threads(shape.threads)
        self.lane, self.warp = kernel.let("lane", thread % WARP), kernel.let("warp", thread // WARP)
        self.member, self.quarter = kernel.let("member", self.lane // 4), kernel.let("quarter", self.lane % 4)
        self.first_tile = kernel.let("first_tile", workgroup * shape.groups)
        self.column_warp = kernel.let("column_warp", self.warp % shape.column_warps)
        # The same for all warps of a workgroup; a tile beyond the last is a copy of it, which is not stored.
        self.turns = kernel.let("turns", (self.tiles - self.first_tile + self.stride - 1) // self.stride)
        self.weights = weights_of(kernel, self.arguments, shape.dtype, shape.stages, shape.threads, thread, rows=[0, 0])
        if isinstance(self.weights, Weights):
            self.weights.hold_masks()
        self.x = kernel.shared("x", (shape.x_rows, shape.x_octets(facts.columns)), "uint32x4")
        self.partial = kernel.shared("partial", (2, shape.warps, shape.x_rows, TILE_ROWS), "float32")
        self.sums = kernel.local("sums", 4, "float32")
        self.a, self.loaded = kernel.local("a", 4, "uint32"), kernel.local("loaded", 1, "uint32x4")
        self.x_words = kernel.local("x_words", 4, "uint32")

    def start(self, turn: Scalar | int, round_: Scalar | int) -> None:
        """Start the copies of a round, if there is one, as one group."""
        with self.kernel.when(turn < self.turns):
            self.weights.rows = self._rows(turn)
            self.weights.start_copies(self._index(turn, round_), self._chunk(round_))
        commit_copies()

    def load_input(self) -> None:
        """Round the input rows into shared memory, all threads together."""
        kernel, facts, shape, arguments = self.kernel, self.facts, self.shape, self.arguments
        count = shape.x_octets(facts.columns) - 4
        turns = -(-count // shape.threads)
        batch = kernel.size(facts.batch)
        measures = kernel.shared("measures", (shape.x_rows, shape.warps), "float32x2")
        self.factors = kernel.shared("factors", (shape.x_rows,), "float32")
        values = kernel.local("values", shape.x_rows * turns * 2, "float32x4", fill=0)
        folded = kernel.local("folded", 2, "float32")
        rows = [kernel.let("x_row", minimum(self.row_block * shape.x_rows + i, batch - 1)) for i in range(shape.x_rows)]
        for i, row in enumerate(rows):
            squares = kernel.local("squares", 1, "float32x4", fill=0)
            largest = kernel.local("largest", 1, "float32", fill=0)
            for turn in range(turns):
                octet = self.thread + turn * shape.threads
                with kernel.when(guard_below(octet, count, shape.threads)):
                    for half in range(2):
                        at, quad = (i * turns + turn) * 2 + half, octet * 2 + half
                        values[at] = arguments.x.quad(row, quad, count * 2)
                        if arguments.norm is not None:
                            squares[0] = squares[0] + values[at] * values[at]
                            values[at] = values[at] * arguments.norm.quad(quad, count * 2)
                        for lane in range(4):
                            largest[0] = maximum(largest[0], magnitude(lane_of(values[at], lane)))
            folded[0] = result_of("float32", "subgroupMax", largest[0])
            folded[1] = result_of("float32", "subgroupAdd", sum_lanes(squares[0]))
            with kernel.when(self.lane == 0):
                measures[i, self.warp] = vector(folded[0], folded[1])
        kernel.barrier()
        for i in range(shape.x_rows):
            folded[0], folded[1] = 0, 0
            for warp in range(shape.warps):
                of_warp = kernel.let("of_warp", measures[i, warp])
                folded[0] = maximum(folded[0], lane_of(of_warp, 0))
                folded[1] = folded[1] + lane_of(of_warp, 1)
            scale, factor = scale_and_factor(kernel, folded[0])
            if facts.norm_eps is not None:
                factor = factor * rms_factor(folded[1], facts.columns, facts.norm_eps)
            with kernel.when(self.thread == 0):
                self.factors[i] = factor
            for turn in range(turns):
                octet = kernel.let("octet", self.thread + turn * shape.threads)
                with kernel.when(guard_below(octet, count, shape.threads)):
                    halves = [
                        kernel.let("scaled", values[(i * turns + turn) * 2 + half] * splat(scale)) for half in range(2)
                    ]
                    pairs = [
                        pair(shape.dtype, lane_of(each, low), lane_of(each, low + 2))
                        for each in halves
                        for low in (0, 1)
                    ]
                    # Adjacent chunks of a block are adjacent for each of their octets.
                    place = octet // OCTETS * OCTETS + octet % CHUNKS * CHUNKS + octet % OCTETS // CHUNKS
                    self.x[i, place] = vector(*pairs)
        kernel.barrier()

    def clear(self) -> None:
        for i in range(4):
            self.sums[i] = 0

    def multiply(self, turn: Scalar, round_: Scalar) -> None:
        """Add the products of a round, whose copies have arrived, and start those of a later one."""
        kernel, shape = self.kernel, self.shape
        wait_for_older_copies(self.ahead - 1)
        later = round_ + self.ahead
        self.start(turn + later // self.rounds, later % self.rounds)
        self.weights.rows = self._rows(turn)
        self.weights.load(self._index(turn, round_), self._chunk(round_))
        block = kernel.let("block", round_ * shape.column_warps + self.column_warp)
        x_row = 0 if shape.x_rows == 1 else minimum(self.member, shape.x_rows - 1)
        for octet in range(CHUNKS):
            self.loaded[0] = self.x[x_row, block * OCTETS + octet * CHUNKS + self.quarter]
            for word in range(4):
                self.x_words[word] = lane_of(self.loaded[0], word)
            self.weights.unpack(octet)
            for step in range(2):
                for word in range(4):
                    # Rows m and m + 8, of the low and of the high half of the step's columns.
                    self.a[word] = self.weights.octets[word % 2 * 4 + step * 2 + word // 2]
                operands = address_of(self.a, 0), address_of(self.x_words, step * 2)
                multiply_tiles(shape.dtype, address_of(self.sums, 0), *operands)

    def store(self, turn: Scalar) -> None:
        """Add the sums of the warps of each tile, and store its results."""
        kernel, facts, shape = self.kernel, self.facts, self.shape
        parity = turn % 2
        for right in range(2 if shape.x_rows > 1 else 1):
            row = self.quarter * 2 + right
            with kernel.when(row < shape.x_rows):
                for below in range(2):
                    place = parity, self.warp, row, self.member + below * 8
                    self.partial[place] = self.sums[below * 2 + right]
        # The other half of the memory is written before the next barrier, after all threads have read it.
        kernel.barrier()
        outputs = TILE_ROWS // 2 if facts.gated else TILE_ROWS
        items = shape.groups * shape.x_rows * outputs
        assert items <= shape.threads, shape
        with kernel.when(guard_below(self.thread, items, shape.threads)):
            member, row = self.thread % outputs, kernel.let("own_row", self.thread // outputs % shape.x_rows)
            group = kernel.let("group", self.thread // (outputs * shape.x_rows))
            dots = []
            for half in range(2 if facts.gated else 1):
                dot = kernel.local("dot", 1, "float32", fill=0)
                for warp in range(shape.column_warps):
                    place = parity, group * shape.column_warps + warp, row, member + half * 8
                    dot[0] = dot[0] + self.partial[place]
                dots.append(dot[0] * self.factors[row])
            output = kernel.let("output", (self.first_tile + turn * self.stride + group) * outputs + member)
            # A row beyond the last is a copy of it, and so is its result.
            batch_row = self.row_block * shape.x_rows + row
            if shape.x_rows > 1:
                batch_row = kernel.let("batch_row", minimum(batch_row, kernel.size(facts.batch) - 1))
            self.arguments.store(kernel, batch_row, output, dots, output < facts.outputs)

    def _index(self, turn: Scalar | int, round_: Scalar | int) -> Scalar:
        """The number of a round."""
        return self.kernel.let("index", number(0, "int32") + (turn * self.rounds + round_))

    def _rows(self, turn: Scalar | int) -> list[Scalar]:
        """The thread's two weight rows of a tile."""
        kernel, facts = self.kernel, self.facts
        tile = self.first_tile + turn * self.stride
        if self.shape.groups > 1:
            tile = tile + self.warp // self.shape.column_warps
        tile = kernel.let("tile", minimum(tile, self.tiles - 1))
        if facts.gated:
            row = kernel.let("weight_row", minimum(tile * 8 + self.member, facts.outputs - 1))
            return [row, row + facts.outputs]
        return [
            kernel.let("weight_row", minimum(tile * TILE_ROWS + self.member + below * 8, facts.outputs - 1))
            for below in range(2)
        ]

    def _chunk(self, round_: Scalar | int) -> Scalar:
        """The thread's chunk of a block of a round. Beyond the last chunk, a copy of it is multiplied by zeros."""
        block = round_ * self.shape.column_warps + self.column_warp
        return self.kernel.let("chunk", minimum(block * CHUNKS + self.quarter, self.arguments.weight.chunks - 1))
