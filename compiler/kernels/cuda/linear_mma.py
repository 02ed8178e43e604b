"""linear for several rows on tensor cores: 16-bit operands, float32 sums. x is what `rows16` left in
scratch.

One warp: ``rows`` input rows by ``tiles`` times 8 outputs (for a gated projection, of each half). Each of four
neighbouring threads reads one chunk of 32 columns of a weight row unchanged and converts it to 16-bit floats in
registers, once for all rows. The order of columns in a sum is arbitrary, so tensor cores receive columns in the order
in which weights are unpacked, and rows16 stores its columns in the same order.
One workgroup: ``column_warps`` warps side by side along the outputs. Input rows and weights are copied asynchronously
to shared memory, ``stages`` - 1 slices of columns ahead; a thread copies its own weights. The first weights are copied
before the kernel waits for the previous one.
If a matrix has too few workgroups, each tile of the result has ``splits`` of them, each for a range of columns. They
leave their sums in scratch, and the last one to arrive adds them, always in the order of columns.
Needs: sm_80; scratch at multiples of 16 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ...ir.expr import Expr
from ...quant.base import GROUP
from ...quant.kernel_format import WeightFormat, reads_plain
from ..builder import Array, Kernel, KernelBuilder, Scalar, address_of, guard_below, minimum, number, select, size_bytes
from ..projection import Projection, ProjectionArguments
from ..vectors import lane_of, vector
from .coded_weights import CodedWeights, bytes_of_row
from .functions import (
    arrive,
    commit_copies,
    copy_16_bytes,
    copy_element,
    multiply_tiles,
    scale_pair,
    unpack_octet,
    wait_for_older_copies,
    wait_for_previous_kernel,
)
from .rows16 import BLOCK, CHUNK_OCTETS, MAX_SPLIT_TILES, TILE_ROWS, arrivals_buffer, blocks_of, rows16_buffers

CHUNKS = BLOCK // GROUP
# A block's columns in parts, each an octet of every chunk.
PARTS = CHUNK_OCTETS
# The elements of 16 bytes of a part of 16 rows: one for each thread of a warp and each of two matrix products.
ELEMENTS = 2 * 32
# The number of blocks of a chunk's codes.
CHUNK_LOADS = {"q2": 1, "q4": 1, "q8": 2, "f16": 4}


@dataclass(frozen=True, slots=True)
class MmaShape:
    """A workgroup has ``rows`` input rows (a multiple of 16); see above for the other parameters. ``dtype`` is
    "float16" or "bfloat16". A slice is ``parts`` (1, 2 or 4) times 32 columns. A shape with ``splits`` > 1 computes at
    most ``max_batch`` rows.
    """

    rows: int
    tiles: int
    column_warps: int
    dtype: str
    parts: int = PARTS
    stages: int = 3
    splits: int = 1
    max_batch: int = 0

    @property
    def threads(self) -> int:
        return 32 * self.column_warps

    @property
    def outputs(self) -> int:
        return 8 * self.tiles * self.column_warps

    @property
    def slices(self) -> int:
        """The slices of a block of columns."""
        return PARTS // self.parts

    @property
    def weight_slots(self) -> int:
        """The blocks of weights that the slices in use and in flight belong to."""
        return -(-(self.stages - 1) // self.slices) + 1


class Weights:
    """A thread's chunks of several weight rows: slots in shared memory for the blocks in flight, and registers for one
    block, packed, and for ``buffers`` octets of each row as 16-bit floats.
    """

    def __init__(
        self,
        kernel: KernelBuilder,
        arguments: ProjectionArguments,
        dtype: str,
        slots: int,
        threads: int,
        thread: Scalar,
        rows: list[Scalar],
        buffers: int = 1,
    ) -> None:
        fmt = arguments.facts.weight
        self._weight, self._fmt, self._dtype = arguments.weight, fmt, dtype
        self._scaled = bool(fmt.scale_dtype) and not fmt.per_row
        self._thread, self._rows, self._slots = thread, rows, slots
        self._loads = CHUNK_LOADS[fmt.kind]
        count = len(rows) * self._loads
        self._blocks = kernel.shared("slots", (self._slots, count, threads), fmt.block_dtype)
        self._codes = kernel.local("codes", count, fmt.block_dtype)
        if self._scaled:
            self._words = kernel.shared("scale_slots", (self._slots, len(rows), threads), "uint32")
            self._scales = kernel.local("scales", len(rows), "uint32")
        self.octets = kernel.local("b", buffers * 4 * len(rows), "uint32")

    def start_copies(self, block: Scalar, chunk: Scalar) -> None:
        slot = block % self._slots
        for i, row in enumerate(self._rows):
            for j in range(self._loads):
                shared = address_of(self._blocks, slot, i * self._loads + j, self._thread)
                address = self._weight.block_address(row, chunk * self._loads + j)
                copy_element(shared, address, size_bytes(self._fmt.block_dtype))
            if self._scaled:
                address, _ = self._weight.scale_address(row, chunk)
                copy_element(address_of(self._words, slot, i, self._thread), address, 4)

    def load(self, block: Scalar, chunk: Scalar) -> None:
        """Start to use a block whose copies have arrived."""
        slot = block % self._slots
        for i, row in enumerate(self._rows):
            for j in range(self._loads):
                self._codes[i * self._loads + j] = self._blocks[slot, i * self._loads + j, self._thread]
            if self._scaled:
                _, index = self._weight.scale_address(row, chunk)
                self._scales[i] = scale_pair(self._dtype, self._words[slot, i, self._thread], index % 2)

    def unpack(self, octet: int, buffer: int = 0) -> None:
        """Set a buffer of ``octets`` to one of the four octets of each row's chunk, in the order of rows16."""
        words, start = self._loads, buffer * 4 * len(self._rows)
        first = octet * words
        for i in range(len(self._rows)):
            if self._fmt.kind == "q2":
                # A word holds two octets.
                codes = [lane_of(self._codes[i], octet // 2) >> number(octet % 2 * 4, "uint32")]
            else:
                codes = [
                    lane_of(self._codes[i * words + (first + word) // 4], (first + word) % 4) for word in range(words)
                ]
            scale = self._scales[i] if self._scaled else None
            unpack_octet(self._fmt.kind, self._dtype, address_of(self.octets, start + 4 * i), codes, scale)


def weights_type(fmt: WeightFormat) -> type[Weights | CodedWeights]:
    return Weights if is_plain(fmt) else CodedWeights


def linear_mma(name: str, facts: Projection, shape: MmaShape) -> Kernel:
    kernel = KernelBuilder(name)
    arguments = ProjectionArguments(kernel, facts, blocks=True, reads_x=False)
    rows16, factors = rows16_buffers(kernel, facts.batch, facts.columns, write=False)
    halves, row_tiles, threads = 2 if facts.gated else 1, shape.rows // TILE_ROWS, shape.threads
    blocks, splits, slices = blocks_of(facts.columns), shape.splits, shape.slices
    split_blocks = -(-blocks // splits)
    assert split_blocks * (splits - 1) < blocks, (facts.columns, shape)
    row_blocks: Expr = ["ceildiv", facts.batch, shape.rows]
    column_blocks = -(-facts.outputs // shape.outputs)
    quads = halves * shape.tiles * row_tiles
    shared_sums = SplitSums(kernel, facts, shape, column_blocks, quads) if splits > 1 else None

    column_block, workgroup = kernel.grid(column_blocks, row_blocks if splits == 1 else ["mul", row_blocks, splits])
    thread = kernel.threads(threads)
    batch = kernel.size(facts.batch)
    lane, warp = kernel.let("lane", thread % 32), kernel.let("warp", thread // 32)
    row_block, split = (workgroup, 0) if splits == 1 else (workgroup // splits, kernel.let("split", workgroup % splits))
    tile_index = row_block * column_blocks + column_block
    first_row = kernel.let("first_row", row_block * shape.rows)
    first_output = kernel.let("first_output", column_block * shape.outputs + warp * (8 * shape.tiles))
    member, quarter = kernel.let("member", lane // 4), kernel.let("quarter", lane % 4)
    first_block = kernel.let("first_block", split * split_blocks)
    count = split_blocks if blocks % splits == 0 else minimum(split_blocks, blocks - first_block)
    count = kernel.let("count", count)

    tile = kernel.shared("tile", (shape.stages, shape.parts, row_tiles, ELEMENTS), "uint32x4")
    sums = kernel.local("sums", halves * shape.tiles * row_tiles * 4, "float32", fill=0)
    a = kernel.local("a", 4, "uint32")
    loaded = kernel.local("loaded", 1, "uint32x4")
    weight_rows = [
        kernel.let("weight_row", minimum(first_output + j * 8 + member, facts.outputs - 1) + half * facts.outputs)
        for half in range(halves)
        for j in range(shape.tiles)
    ]
    weights = weights_type(facts.weight)(
        kernel, arguments, shape.dtype, shape.weight_slots, threads, thread, weight_rows
    )
    ahead = shape.stages - 1
    assert ahead >= 1, shape

    def chunk_of(block: Scalar) -> Scalar:
        # Beyond the last chunk, a copy of it is loaded, which is multiplied by zeros of the input.
        return kernel.let("chunk", minimum((first_block + block) * CHUNKS + quarter, arguments.weight.chunks - 1))

    def copy_rows(block: Scalar, part: int, stage: Scalar) -> None:
        groups = kernel.size(["ceildiv", facts.batch, TILE_ROWS])
        items = shape.parts * row_tiles * ELEMENTS
        for start in range(0, items, threads):
            item = kernel.let("item", thread + start)
            with kernel.when(item < items if start + threads > items else True):
                own, i, element = item // (ELEMENTS * row_tiles), item // ELEMENTS % row_tiles, item % ELEMENTS
                group = kernel.let("group", row_block * row_tiles + i)
                octet = (first_block + block) * CHUNK_OCTETS + part * shape.parts + own
                source = address_of(rows16, minimum(group, groups - 1), octet, element)
                copy_16_bytes(address_of(tile, stage, own, i, element), source, select(group < groups, 1, 0))

    for start in range(0, ahead, slices):
        with kernel.when(True if start == 0 else start // slices < count):
            weights.start_copies(number(start // slices, "int32"), chunk_of(number(start // slices, "int32")))
    wait_for_previous_kernel()
    for start in range(ahead):
        with kernel.when(True if start < slices else start // slices < count):
            copy_rows(number(start // slices, "int32"), start % slices, number(start % shape.stages, "int32"))
        commit_copies()

    with kernel.loop("block", count) as block:
        for part in range(slices):
            index = kernel.let("index", block * slices + part)
            wait_for_older_copies(ahead - 1)
            # All copies of this slice have arrived, and no thread still reads the slot of the one before.
            kernel.barrier()
            next_block, next_part = (part + ahead) // slices, (part + ahead) % slices
            with kernel.when(block + next_block < count):
                if next_part == 0:
                    weights.start_copies(block + next_block, chunk_of(block + next_block))
                copy_rows(block + next_block, next_part, (index + ahead) % shape.stages)
            commit_copies()
            if part == 0:
                weights.load(block, chunk_of(block))
            for own in range(shape.parts):
                weights.unpack(part * shape.parts + own)
                for i in range(row_tiles):
                    for k in range(2):
                        loaded[0] = tile[index % shape.stages, own, i, k * 32 + lane]
                        for word in range(4):
                            a[word] = lane_of(loaded[0], word)
                        for n in range(halves * shape.tiles):
                            operands = address_of(a, 0), address_of(weights.octets, n * 4 + k * 2)
                            multiply_tiles(shape.dtype, address_of(sums, (n * row_tiles + i) * 4), *operands)
    # The last groups are empty; waiting for them ends the copies of this thread in order.
    wait_for_older_copies(0)

    with kernel.when(True if shared_sums is None else shared_sums.add(sums, thread, tile_index, split)):
        for i in range(row_tiles):
            for below in range(2):
                row = kernel.let("row", first_row + (i * 16 + below * 8) + member)
                with kernel.when(row < batch):
                    factor = kernel.let("factor", factors[row])
                    for j in range(shape.tiles):
                        for right in range(2):
                            output = kernel.let("output", first_output + (j * 8 + right) + quarter * 2)
                            dots = [
                                sums[((half * shape.tiles + j) * row_tiles + i) * 4 + below * 2 + right] * factor
                                for half in range(halves)
                            ]
                            guard = guard_below(output, facts.outputs, shape.outputs)
                            arguments.store(kernel, row, output, dots, guard)
    return kernel.finish()


class SplitShape(Protocol):
    """The part of a shape that `SplitSums` needs."""

    @property
    def rows(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def splits(self) -> int: ...
    @property
    def max_batch(self) -> int: ...


class SplitSums:
    """The sums of all workgroups of each tile of the result, in scratch, and how many of them have arrived."""

    def __init__(
        self, kernel: KernelBuilder, facts: Projection, shape: SplitShape, column_blocks: int, quads: int
    ) -> None:
        """``quads``: a quarter of a thread's sums."""
        row_blocks = -(-shape.max_batch // shape.rows)
        assert 0 < column_blocks * row_blocks <= MAX_SPLIT_TILES, (facts.outputs, shape)
        self._kernel, self._splits = kernel, shape.splits
        self._quads = quads
        tiles: Expr = ["mul", ["min", ["ceildiv", facts.batch, shape.rows], row_blocks], column_blocks]
        self._partial = kernel.scratch(
            "split_sums", (tiles, shape.splits, self._quads, shape.threads), "float32x4", write=True
        )
        self._arrivals = arrivals_buffer(kernel)

    def add(self, sums: Array, thread: Scalar, tile: Scalar, split: Scalar) -> Scalar:
        """Leave this workgroup's sums. In the last workgroup of a tile, which the result is a condition for, replace
        them by those of all, added in the order of the splits.
        """
        kernel, partial = self._kernel, self._partial
        for i in range(self._quads):
            partial[tile, split, i, thread] = vector(*(sums[4 * i + k] for k in range(4)))
        before = kernel.local("before", 1, "uint32")
        position = kernel.shared("position", (1,), "uint32")
        # All threads have written their sums before one of them arrives.
        kernel.barrier()
        with kernel.when(thread == 0):
            before[0] = arrive(address_of(self._arrivals, tile))
            position[0] = before[0]
        kernel.barrier()
        is_last = kernel.let("is_last", position[0] == number(self._splits - 1, "uint32"))
        quad = kernel.local("quad", 1, "float32x4")
        with kernel.when(is_last):
            for i in range(4 * self._quads):
                sums[i] = 0
            with kernel.loop("other", self._splits) as other:
                for i in range(self._quads):
                    quad[0] = partial[tile, other, i, thread]
                    for k in range(4):
                        sums[4 * i + k] = sums[4 * i + k] + lane_of(quad[0], k)
        return is_last


def shared_bytes(fmt: WeightFormat, shape: MmaShape, *, gated: bool) -> int:
    """The shared memory of a kernel, without that of `SplitSums`."""
    weights = shape.weight_slots * (2 if gated else 1) * shape.tiles * shape.threads * thread_bytes(fmt)
    return weights + shape.stages * shape.parts * (shape.rows // TILE_ROWS) * ELEMENTS * 16


def thread_bytes(fmt: WeightFormat) -> int:
    """The shared memory of a thread's chunk of one row of weights."""
    scale = 4 if fmt.scale_dtype and not fmt.per_row else 0
    return CHUNK_LOADS[fmt.kind] * size_bytes(fmt.block_dtype) + scale if is_plain(fmt) else bytes_of_row(fmt)


def is_plain(fmt: WeightFormat) -> bool:
    """Whether weights are computed in 16 bits: codes of one plane without offsets, whose scales float16 holds or the
    result is multiplied by.
    """
    return reads_plain(fmt) and fmt.kind in CHUNK_LOADS and (fmt.scale_dtype != "float32" or fmt.per_row)


def supports(facts: Projection) -> bool:
    """Whether this weight format can be unpacked to 16 bits: all formats except float32."""
    return facts.weight.kind != "f32"
