"""linear with AMX, whose instructions multiply matrices of bfloat16.

Numbers are sums of one or two bfloat16, so they have 8 or 16 bits. The product of both second ones, which is below the
precision of the others, is omitted.

Rows that `prepare_rows.py` wrote to scratch as planes, weight in planes (N/16, words, 16), bias -> y (batch, N).

One task: two tiles of 16 outputs each (of a gated projection, one of each half), whose weights become planes once for
as many rows as a cache holds. One instruction multiplies 16 rows by 16 outputs over 32 columns, so a task has four
registers of sums: of 32 rows and both tiles. The bits of a row's sums do not depend on other rows, but they are not
those of `linear_tiles.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from ...ir.expr import Expr
from ...quant.base import GROUP, ROW
from ...quant.kernel_format import reads_plain
from ...quant.layout import TILE_ROWS
from ..builder import Array, Kernel, Scalar, address_of, cast, minimum, number, reinterpret
from ..projection import Projection
from ..vectors import floats, ramp, splat, with_lanes
from .bf16_planes import words_of
from .builder import CpuKernelBuilder, Isa, round_up_quotient
from .integer_dot import VnniByteDot
from .linear_tiles import Result, first_tile
from .math import fused
from .matrix_registers import LEFT, RIGHT, ROW_BYTES, ROWS, SUMS, clear, configure, load, multiply, release, store
from .packed import factor_planes

PAIRS = GROUP // 2
# The rows of a block, which two registers of the left side hold.
BLOCK_ROWS = 2 * ROWS
# The size of the prepared rows that use the same unpacked weights: half of a core's second-level cache.
ROWS_BYTES = 1 << 20
MOST_BLOCKS = 32
# The columns whose weights are unpacked at once, in groups of 32.
PIECE_GROUPS = 16


def matrix_multiplies(facts: Projection, bits: int | None) -> bool:
    """Whether `linear_matrix` computes a projection at least as precisely as integers of ``bits``, or floats, do."""
    fmt = facts.weight
    return bits != 16 and reads_plain(fmt) and not fmt.has_units


def linear_matrix(name: str, *, isa: Isa, facts: Projection, planes: int) -> Kernel:
    """Correct for every batch. Inputs and weights are sums of ``planes`` bfloat16."""
    kernel = CpuKernelBuilder(name)
    products = MatrixProducts(kernel, isa, facts, planes)
    result = Result(kernel, facts)
    batch = kernel.size(facts.batch)
    tiles = -(-result.outputs // TILE_ROWS)
    tiles_a_task = 1 if result.halves == 2 or tiles == 1 else 2
    blocks = kernel.let("blocks", round_up_quotient(batch, BLOCK_ROWS))
    with (
        kernel.loop("part", round_up_quotient(blocks, products.blocks_at_once)) as part,
        kernel.tasks("task", -(-tiles // tiles_a_task)) as task,
    ):
        tile, stores_first = first_tile(kernel, task, tiles, tiles_a_task)
        of_task = [tile + i + half * tiles for i in range(tiles_a_task) for half in range(result.halves)]
        first = kernel.let("first_block", part * products.blocks_at_once)
        count = kernel.let("blocks_here", minimum(products.blocks_at_once, blocks - first))
        sums = products.sums(of_task, first, count)
        with (
            kernel.loop("block", count) as block,
            kernel.loop("row_block", 2) as row_block,
            kernel.loop("row_of_block", ROWS) as row_of_block,
        ):
            row = kernel.let("row", (first + block) * BLOCK_ROWS + row_block * ROWS + row_of_block)
            with kernel.when(row < batch):
                for i in range(tiles_a_task):
                    of_halves = range(i * result.halves, (i + 1) * result.halves)
                    at = [(block * len(SUMS) + row_block * len(of_task) + half) * ROWS for half in of_halves]
                    with kernel.when(stores_first if i == 0 else True):
                        result.store(row, tile + i, 0, [sums[each + row_of_block] for each in at])
    result.gate(isa)
    return kernel.finish()


class MatrixProducts:
    """Dot products of prepared rows with one or two tiles of weights."""

    def __init__(self, kernel: CpuKernelBuilder, isa: Isa, facts: Projection, planes: int) -> None:
        self._kernel, self._planes = kernel, planes
        self._weights = TileColumns(kernel, isa, facts)
        self._groups = -(-facts.columns // GROUP)
        row_blocks: Expr = ["mul", ["ceildiv", facts.batch, BLOCK_ROWS], 2]
        self._rows = kernel.scratch("planes", (row_blocks, self._groups, planes, ROWS, ROW_BYTES // 4), "float32")
        block_bytes = BLOCK_ROWS * self._groups * planes * ROW_BYTES
        self.blocks_at_once = max(1, min(MOST_BLOCKS, ROWS_BYTES // block_bytes))

    def sums(self, tiles: list[Scalar], first_block: Scalar, blocks: Scalar) -> Array:
        """Vectors of 16 outputs: of each block four times those of 16 rows, the first rows of all ``tiles`` before the
        last rows.
        """
        kernel, at_once = self._kernel, min(self._groups, PIECE_GROUPS)
        size = at_once * self._planes * len(tiles) * PAIRS
        unpacked = kernel.local("unpacked", size, with_lanes("uint32", TILE_ROWS))
        sums = kernel.local("sums", self.blocks_at_once * len(SUMS) * ROWS, floats(TILE_ROWS))
        configure(kernel)
        with kernel.loop("piece", -(-self._groups // at_once)) as piece:
            first_group = kernel.let("first_group", piece * at_once)
            groups = kernel.let("groups", minimum(at_once, self._groups - first_group))
            with kernel.loop("unpacked_group", groups) as group:
                for at, tile in enumerate(tiles):
                    for pair, even, odd in self._weights.pairs(tile, first_group + group):
                        for plane, words in enumerate(words_of(kernel, even, odd, self._planes)):
                            unpacked[self._place(group, plane, at, len(tiles)) + pair] = words
            with kernel.loop("block", blocks) as block:
                places = [address_of(sums, (block * len(SUMS) + i) * ROWS) for i in range(2 * len(tiles))]
                for register_of_sums, place in enumerate(places):
                    with kernel.when(piece == 0):
                        clear(register_of_sums)
                    with kernel.when(piece > 0):
                        load(register_of_sums, place)
                with kernel.loop("group", groups) as group:
                    self._add(unpacked, group, first_group + group, (first_block + block) * 2, len(tiles))
                for register_of_sums, place in enumerate(places):
                    store(register_of_sums, place)
        release()
        return sums

    def _add(self, unpacked: Array, unpacked_group: Scalar, group: Scalar, row_block: Scalar, tiles: int) -> None:
        """Add the products of 32 columns to all sums of a block, whose rows start with ``row_block``."""
        for weight_plane in range(self._planes):
            for at in range(tiles):
                load(RIGHT[at], address_of(unpacked, self._place(unpacked_group, weight_plane, at, tiles)))
            # The product of both last planes is below the precision of the others.
            for plane, half in product(range(self._planes - weight_plane), range(2)):
                load(LEFT[half], address_of(self._rows, row_block + half, group, plane, 0, 0))
                for at in range(tiles):
                    multiply(half * tiles + at, LEFT[half], RIGHT[at])

    def _place(self, group: Scalar, plane: int, tile: int, tiles: int) -> Scalar:
        return ((group * self._planes + plane) * tiles + tile) * PAIRS


class TileColumns:
    """The columns of a tile of weights: a vector of 16 outputs each."""

    def __init__(self, kernel: CpuKernelBuilder, isa: Isa, facts: Projection) -> None:
        assert isa.lanes == TILE_ROWS
        self._kernel, self._fmt = kernel, facts.weight
        groups, tiles = -(-facts.columns // GROUP), -(-facts.weight_rows // TILE_ROWS)
        fmt = facts.weight
        if fmt.bits is None:
            dtype = {"f16": "float16", "f32": "float32"}[fmt.kind]
            self._weight = kernel.buffer("weight.w", (tiles, groups * GROUP, TILE_ROWS), dtype)
        else:
            self._weight = kernel.buffer("weight.q", (tiles, groups * fmt.low_bits, TILE_ROWS), "uint32")
            self._codes = VnniByteDot(kernel, isa, fmt)
        self._scales, _, _ = factor_planes(kernel, "weight", facts.weight_rows, facts.columns, fmt)

    def pairs(self, tile: Scalar, group: Scalar) -> Iterator[tuple[int, Scalar, Scalar]]:
        """The 16 pairs of a group's columns, as (index, even column, odd column)."""
        kernel, fmt, outputs = self._kernel, self._fmt, ramp(0, TILE_ROWS)
        if self._scales is None:
            for pair in range(PAIRS):
                columns = [self._weight[tile, group * GROUP + 2 * pair + odd, outputs] for odd in range(2)]
                low, high = (kernel.let("weights", cast(each, floats(TILE_ROWS))) for each in columns)
                yield pair, low, high
            return
        scale_index = 0 if fmt.group == ROW else group // (fmt.group // GROUP)
        scales = kernel.let("scales", cast(self._scales[tile, scale_index, outputs], floats(TILE_ROWS)))
        zeros = kernel.let("zeros", scales * splat(number(-fmt.zero, "float32"), TILE_ROWS))
        quads = [
            quad
            for word in range(fmt.low_bits)
            for quad in self._codes.operands(self._weight[tile, group * fmt.low_bits + word, outputs], None, 0)
        ]
        for quad, half in product(range(len(quads)), range(2)):
            low, high = (self._dequantized(quads[quad], 2 * half + odd, scales, zeros) for odd in range(2))
            yield 2 * quad + half, low, high

    def _dequantized(self, quad: Scalar, byte: int, scales: Scalar, zeros: Scalar) -> Scalar:
        """Weights of the codes in one byte of each lane. The sum is exact: it has the bits of the code and of the
        scale.
        """
        word = with_lanes("uint32", TILE_ROWS)
        code = (quad >> number(8 * byte, word) if byte else quad) & number(0xFF, word)
        integers = reinterpret(code, with_lanes("int32", TILE_ROWS))
        return self._kernel.let("weights", fused(cast(integers, floats(TILE_ROWS)), scales, zeros))
