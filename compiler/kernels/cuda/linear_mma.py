"""linear and gated_linear for many rows on tensor cores: 16-bit operands, float32 sums. x is what `rows16` left in
scratch.

One warp: ``rows`` input rows by ``tiles`` times 8 outputs (for a gated projection, of each half), 128 columns at a
time. Each of four neighbouring threads loads one chunk of 32 columns of a weight row unchanged and converts it to
16-bit floats in registers. The order of columns in a sum is arbitrary, so tensor cores receive columns in the order in
which weights are unpacked, and rows16 stores its columns in the same order. Weights thus bypass shared memory. They are
loaded one step before they are used. One workgroup: ``column_warps`` warps side by side along the outputs, times
``depth_warps`` along the columns, whose sums are added at the end. Its input rows pass through shared memory, copied
there asynchronously while the step before is computed. Needs: sm_80; 16-byte copies, so scratch at multiples of 16
bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...quant.base import GROUP
from ..builder import Array, Kernel, KernelBuilder, Scalar, address_of, all_of, lane_of, minimum, number, select
from ..projection import Projection, ProjectionArguments, guard_below
from .functions import copy_16_bytes, multiply_tiles, scale_pair, unpack_octet, wait_for_copies
from .rows16 import BLOCK, OCTETS, blocks_of, rows16_buffers

CHUNKS = BLOCK // GROUP
# The padding between rows in shared memory, in units of 16 bytes, so that eight threads that read two rows together
# access every memory bank once.
ROW_PADDING = 4
# The number of blocks of a chunk's codes.
CHUNK_LOADS = {"q2": 1, "q4": 1, "q8": 2, "f16": 4}


@dataclass(frozen=True, slots=True)
class MmaShape:
    """A workgroup has ``rows`` input rows (a multiple of 16); see above for the other parameters. ``dtype`` is
    "float16" or "bfloat16".
    """

    rows: int
    tiles: int
    column_warps: int
    depth_warps: int
    dtype: str

    @property
    def threads(self) -> int:
        return 32 * self.column_warps * self.depth_warps

    @property
    def outputs(self) -> int:
        return 8 * self.tiles * self.column_warps


class Weights:
    """A thread's registers: its chunk of several weight rows, packed, and one octet of one row as 16-bit floats."""

    def __init__(self, kernel: KernelBuilder, arguments: ProjectionArguments, dtype: str, rows: int) -> None:
        self._kernel, self._weight, self._kind, self._dtype = (
            kernel,
            arguments.weight,
            arguments.facts.weight.kind,
            dtype,
        )
        fmt = arguments.facts.weight
        self._scaled = bool(fmt.scale_dtype) and not fmt.per_row
        self._rows, self._loads = rows, CHUNK_LOADS[self._kind]
        self._next, self._now = (
            kernel.local(name, rows * self._loads, fmt.block_dtype) for name in ("next_codes", "codes")
        )
        self._next_scales, self._scales = (kernel.local(name, rows, "uint32") for name in ("next_scales", "scales"))
        self.octet = kernel.local("b", 4, "uint32")

    def load(self, weight_rows: list[Scalar], chunk: Scalar) -> None:
        """Load the weights of the next step."""
        for i, row in enumerate(weight_rows):
            for j in range(self._loads):
                self._next[i * self._loads + j] = self._weight.block(row, chunk * self._loads + j)
            if self._scaled:
                raw, index = self._weight.raw_scale(row, chunk)
                self._next_scales[i] = scale_pair(self._dtype, raw, index % 2)

    def advance(self) -> None:
        """Start to use the loaded weights."""
        for i in range(self._rows * self._loads):
            self._now[i] = self._next[i]
        for i in range(self._rows if self._scaled else 0):
            self._scales[i] = self._next_scales[i]

    def unpack(self, i: int, octet: int) -> None:
        """Set ``octet`` to one of the four octets of row i's chunk, in the order of rows16."""
        words = self._loads
        first = octet * words
        if self._kind == "q2":
            # A word holds two octets.
            codes = [lane_of(self._now[i], octet // 2) >> number(octet % 2 * 4, "uint32")]
        else:
            codes = [lane_of(self._now[i * words + (first + word) // 4], (first + word) % 4) for word in range(words)]
        scale = self._scales[i] if self._scaled else None
        unpack_octet(self._kind, self._dtype, address_of(self.octet, 0), codes, scale)


def linear_mma(name: str, facts: Projection, shape: MmaShape) -> Kernel:
    kernel = KernelBuilder(name)
    arguments = ProjectionArguments(kernel, facts, blocks=True)
    rows16, factors = rows16_buffers(kernel, facts.batch, facts.columns, write=False)
    halves, row_tiles, threads = 2 if facts.gated else 1, shape.rows // 16, shape.threads
    blocks, depth = blocks_of(facts.columns), shape.depth_warps
    steps = -(-blocks // depth)
    width = depth * OCTETS

    column_block, row_block = kernel.grid(
        ["ceildiv", facts.outputs, shape.outputs], ["ceildiv", facts.batch, shape.rows]
    )
    thread = kernel.threads(threads)
    batch = kernel.size(facts.batch)
    lane, warp = kernel.let("lane", thread % 32), kernel.let("warp", thread // 32)
    depth_warp = kernel.let("depth_warp", warp // shape.column_warps)
    first_row = kernel.let("first_row", row_block * shape.rows)
    first_output = kernel.let(
        "first_output", column_block * shape.outputs + warp % shape.column_warps * (8 * shape.tiles)
    )
    member, quarter = kernel.let("member", lane // 4), kernel.let("quarter", lane % 4)

    tile = kernel.shared("tile", (2, shape.rows, width + ROW_PADDING), "uint32x4")
    sums = kernel.local("sums", halves * shape.tiles * row_tiles * 4, "float32", fill=0)
    a = kernel.local("a", row_tiles * 8, "uint32")
    loaded = kernel.local("loaded", 1, "uint32x4")
    weights = Weights(kernel, arguments, shape.dtype, halves * shape.tiles)
    weight_rows = [
        kernel.let("weight_row", minimum(first_output + j * 8 + member, facts.outputs - 1) + half * facts.outputs)
        for half in range(halves)
        for j in range(shape.tiles)
    ]

    def start_copies(step: Scalar, stage: Scalar) -> None:
        count = shape.rows * width
        for start in range(0, count, threads):
            item = kernel.let("item", thread + start)
            with kernel.when(guard_below(item, count, 1) if start + threads > count else True):
                row, octet_index = kernel.let("row", item // width), kernel.let("octet_index", item % width)
                octet = kernel.let("octet", step * width + octet_index)
                source = address_of(rows16, minimum(first_row + row, batch - 1), minimum(octet, blocks * OCTETS - 1))
                present = select(octet < blocks * OCTETS, 1, 0) if steps * depth > blocks else 1
                copy_16_bytes(address_of(tile, stage, row, octet_index), source, present)

    def load_weights(step: Scalar) -> None:
        # Beyond the last chunk, a copy of it is loaded, which is multiplied by zeros of the input.
        weights.load(
            weight_rows,
            kernel.let("chunk", minimum((step * depth + depth_warp) * CHUNKS + quarter, arguments.weight.chunks - 1)),
        )

    start_copies(0, 0)
    load_weights(0)
    with kernel.loop("step", steps) as step:
        wait_for_copies()
        # All copies have arrived, and no thread still reads the other half of the tile.
        kernel.barrier()
        weights.advance()
        with kernel.when(step + 1 < steps):
            start_copies(step + 1, (step + 1) % 2)
            load_weights(step + 1)
        for octet in range(4):
            for i in range(row_tiles):
                for below in range(2):
                    loaded[0] = tile[step % 2, i * 16 + below * 8 + member, depth_warp * OCTETS + octet * 4 + quarter]
                    for word in range(4):
                        a[i * 8 + word // 2 * 4 + word % 2 * 2 + below] = lane_of(loaded[0], word)
            for n in range(halves * shape.tiles):
                weights.unpack(n, octet)
                for i in range(row_tiles):
                    for part in range(2):
                        operands = address_of(a, i * 8 + part * 4), address_of(weights.octet, part * 2)
                        multiply_tiles(shape.dtype, address_of(sums, (n * row_tiles + i) * 4), *operands)

    if depth > 1:
        add_depths(kernel, sums, warp, lane, depth_warp, shape)
    for i in range(row_tiles):
        for below in range(2):
            row = kernel.let("row", first_row + (i * 16 + below * 8) + member)
            with kernel.when(all_of(row < batch, depth_warp == 0 if depth > 1 else True)):
                factor = kernel.let("factor", factors[row])
                for j in range(shape.tiles):
                    for right in range(2):
                        output = kernel.let("output", first_output + (j * 8 + right) + quarter * 2)
                        dots = [
                            sums[((half * shape.tiles + j) * row_tiles + i) * 4 + below * 2 + right] * factor
                            for half in range(halves)
                        ]
                        arguments.store(kernel, row, output, dots, guard_below(output, facts.outputs, shape.outputs))
    return kernel.finish()


def add_depths(
    kernel: KernelBuilder, sums: Array, warp: Scalar, lane: Scalar, depth_warp: Scalar, shape: MmaShape
) -> None:
    """Add the sums of all warps along the columns to those of the first, in a fixed order."""
    count, columns = int(sums.buffer.shape[0]), shape.column_warps
    partial = kernel.shared("partial", ((shape.depth_warps - 1) * columns, count, 32), "float32")
    with kernel.when(depth_warp > 0):
        for i in range(count):
            partial[warp - columns, i, lane] = sums[i]
    kernel.barrier()
    with kernel.when(depth_warp == 0):
        for other in range(shape.depth_warps - 1):
            for i in range(count):
                sums[i] = sums[i] + partial[other * columns + warp, i, lane]


def shared_bytes(shape: MmaShape, *, gated: bool) -> int:
    tile = 2 * shape.rows * (shape.depth_warps * OCTETS + ROW_PADDING) * 16
    return (
        tile
        + (shape.depth_warps - 1)
        * shape.column_warps
        * shape.tiles
        * (2 if gated else 1)
        * shape.rows
        // 16
        * 4
        * 32
        * 4
    )


def supports(facts: Projection) -> bool:
    """Whether this weight format can be unpacked to 16 bits: all formats except those with float32 values, or with
    several float32 scales in a row.
    """
    return facts.weight.kind in CHUNK_LOADS and (facts.weight.scale_dtype != "float32" or facts.weight.per_row)
