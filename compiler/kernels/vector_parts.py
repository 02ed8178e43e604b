"""The parts that matrix-vector kernels share: the input's tile in workgroup memory, and the dot products of blocks of
weights with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..ir.ops.parts import Part
from .builder import Array, KernelBuilder, Scalar, guard_below, minimum, number, select
from .maths import rms_factor
from .packed import PackedMatrix, WeightFormat
from .projection import InputArguments, ProjectionArguments
from .vectors import lane_of, splat, sum_lanes, vector


class InputRow:
    """The quads of one input row, of columns below 4 * ``reach``. What the projection loads is complete, but an RMS
    norm at its end only multiplies by its weight: ``squares`` gives the factor of the results. The workgroup for which
    ``is_first`` holds stores the results that are kept.
    """

    def __init__(
        self,
        kernel: KernelBuilder,
        arguments: InputArguments,
        thread: Scalar,
        threads: int,
        reach: int,
        row: Scalar,
        is_first: Scalar,
    ) -> None:
        self._kernel, self._arguments, self._row, self._is_first = kernel, arguments, row, is_first
        self._thread, self._threads, self._reach = thread, threads, reach
        self._quad = kernel.local("x_quad", 1, "float32x4")
        facts = arguments.facts
        self._squares = kernel.local("squares", 1, "float32x4", fill=0) if facts.norm is not None else None
        self._mean = self._inverse = None
        if facts.before_norm and facts.before_norm[0]["op"] == "rms_norm":
            self._prepare_norm(facts.before_norm[0])

    def _prepare_norm(self, norm: Part) -> None:
        """Compute the numbers of a norm that is complete before the row is multiplied."""
        kernel, columns = self._kernel, self._arguments.facts.columns
        if norm["centered"]:
            total = self._row_total("columns", lambda quad, _: quad)
            self._mean = kernel.let("mean", total * number(1 / columns, "float32"))
            squares = self._row_total("deviations", self._squared_deviation)
        else:
            squares = self._row_total("row_squares", lambda quad, _: quad * quad)
        self._inverse = kernel.let("inverse", rms_factor(squares, columns, norm["eps"]))

    def _squared_deviation(self, quad: Scalar, index: Scalar) -> Scalar:
        columns = self._arguments.facts.columns
        deviation = quad - splat(self._mean)
        if columns % 4:
            # The elements beyond the last column are zeros, which have no part in the variance.
            zero = number(0, "float32")
            lanes = (select(index * 4 + lane < columns, lane_of(deviation, lane), zero) for lane in range(4))
            deviation = vector(*lanes)
        return deviation * deviation

    def _row_total(self, name: str, term: Callable[[Scalar, Scalar], Scalar]) -> Scalar:
        """The sum of a term of each quad of the row."""
        kernel = self._kernel
        quads = -(-self._arguments.facts.columns // 4)
        total = kernel.local(f"{name}_total", 1, "float32x4", fill=0)
        with kernel.loop("i", -(-quads // self._threads)) as i:
            index = kernel.let("index", i * self._threads + self._thread)
            with kernel.when(guard_below(index, quads, self._threads)):
                self._quad[0] = self._arguments.x.quad(self._row, index, quads)
                total[0] = total[0] + term(self._quad[0], index)
        return kernel.folded(name, self._thread, self._threads, sum_lanes(total[0]), lambda one, other: one + other)

    @property
    def squares(self) -> Scalar | None:
        """This thread's part of the sum of the row's squares; None if results need no factor."""
        return None if self._squares is None else sum_lanes(self._squares[0])

    def clear_squares(self) -> None:
        if self._squares is not None:
            self._squares[0] = 0

    def read(self, column: Scalar) -> Scalar:
        """A quad of the row, which is valid until the next one is read."""
        self._read(column)
        return self._quad[0]

    def _read(self, column: Scalar) -> None:
        """Read a quad of the row, and multiply it by the norm's weight."""
        quad, arguments = self._quad, self._arguments
        quad[0] = arguments.x.quad(self._row, column, self._reach)
        self._apply(column)
        if arguments.norm is not None and self._squares is not None:
            self._squares[0] = self._squares[0] + quad[0] * quad[0]
            quad[0] = quad[0] * arguments.norm.quad(column, self._reach)

    def _apply(self, column: Scalar) -> None:
        """Replace a quad of the row, which is rounded already, by that of the result of the parts before the norm."""
        arguments, quad, reach = self._arguments, self._quad, self._reach
        value = quad[0]
        loads = arguments.loads[: len(arguments.facts.before_norm)]
        for load in loads:
            if load.weights is not None:
                value = (value if self._mean is None else value - splat(self._mean)) * splat(self._inverse)
                value = value * load.weights.quad(column, reach)
            if load.bias is not None:
                quad[0] = value
                value = quad[0] + load.bias.quad(0, column, reach)
            if load.addend is not None:
                value = load.addend.quad(self._row, column, reach) + value
            if load.factor is not None:
                value = value * splat(load.factor[0])
            if load.part["keep"]:
                quad[0] = value
                load.keep(quad[0], self._row, column, self._is_first)
                value = quad[0]
        if self._inverse is not None and not loads[-1].part["keep"]:
            quad[0] = value


class InputTile(InputRow):
    """A part of the row in workgroup memory: ``blocks`` blocks of the weight's columns.

    Columns beyond the last are zero, so kernels may compute complete tiles. The quads j of all blocks are contiguous:
    threads with adjacent blocks read adjacent memory, and global memory is read in its own order.
    """

    dtype = "float32"

    def __init__(
        self,
        kernel: KernelBuilder,
        arguments: ProjectionArguments,
        thread: Scalar,
        threads: int,
        blocks: int,
        steps: int,
        row: Scalar,
        is_first: Scalar,
    ) -> None:
        self.quads = arguments.facts.weight.block_columns // 4
        self._blocks = blocks
        # One more than the blocks, so that adjacent threads do not write to the same memory bank.
        self._tile = kernel.shared("x_tile", (self.quads, blocks + 1), f"{self.dtype}x4")
        super().__init__(kernel, arguments, thread, threads, steps * blocks * self.quads, row, is_first)

    def fill(self, step: Scalar) -> None:
        """Read the step-th tile of the row, all threads together. The caller adds the barriers."""
        count = self._blocks * self.quads
        for i in range(-(-count // self._threads)):
            index = i * self._threads + self._thread
            with self._kernel.when(guard_below(index, count, self._threads)):
                self._read(step * count + index)
                self._tile[index % self.quads, index // self.quads] = self._quad[0]

    def quad(self, block: Scalar, j: int) -> Scalar:
        """Quad j of a block, counted from the tile's first."""
        return self._tile[j, block]


class InputBlocks(Protocol):
    """An input row in workgroup memory, of which a block has ``quads``."""

    @property
    def quads(self) -> int: ...

    def quad(self, block: Scalar, j: int) -> Scalar:
        """Quad j of a block."""


@dataclass(frozen=True, slots=True)
class LoadedBlocks:
    """Blocks of several weight rows and the words of their scales, in registers; ``scale_indices`` are the scales'
    indices in their words. ``high``: the words of the codes' high bits; ``offsets``: those of zero points or biases.
    """

    words: Array
    scales: Array | None
    scale_indices: tuple[Scalar, ...]
    high: Array | None = None
    offsets: Array | None = None


def load_blocks(
    kernel: KernelBuilder,
    arguments: ProjectionArguments,
    first_output: Scalar,
    rows: int,
    block: Scalar,
    reach: int,
    *,
    clamp: bool,
) -> LoadedBlocks:
    """Block number ``block``, below ``reach``, of ``rows`` weight rows from ``first_output`` on; for a gated
    projection, of both halves.

    Rows and blocks beyond the last are copies of it, which costs less than a branch: such rows are not stored, and such
    blocks meet zeros of the input. ``clamp``: there may be rows beyond the last.
    """
    facts, weight = arguments.facts, arguments.weight
    if reach > weight.blocks:
        block = minimum(block, weight.blocks - 1)
    block = kernel.let("block", block)
    weight_rows = []
    for half in range(2 if facts.gated else 1):
        for r in range(rows):
            output = first_output + r
            if clamp:
                output = minimum(output, facts.outputs - 1)
            weight_rows.append(arguments.first_row + output + half * facts.outputs)
    words = kernel.local("words", len(weight_rows), facts.weight.block_dtype)
    for i, weight_row in enumerate(weight_rows):
        words[i] = weight.block(weight_row, block)
    fmt, high, offsets = facts.weight, None, None
    if fmt.high_bits:
        high = kernel.local("high_words", len(weight_rows) * fmt.high_bits, "uint32")
        for i, weight_row in enumerate(weight_rows):
            for j in range(fmt.high_bits):
                high[i * fmt.high_bits + j] = weight.high_word(weight_row, block, j)
    if not fmt.scale_dtype or fmt.per_row:
        return LoadedBlocks(words, None, (), high)
    parts, indices = fmt.scales_a_block, []
    scales = kernel.local("scale_words", len(weight_rows) * parts, weight.raw_scale_dtype)
    if fmt.offset:
        offsets = kernel.local("offset_words", len(weight_rows) * parts, weight.raw_scale_dtype)
    for i, weight_row in enumerate(weight_rows):
        for part, half in enumerate(halves_of(fmt, weight, block)):
            raw, index = weight.raw_scale(weight_row, chunk_of(weight, block), half)
            scales[i * parts + part] = raw
            indices.append(index)
            if offsets is not None:
                offsets[i * parts + part] = weight.raw_offset(weight_row, chunk_of(weight, block), half)
    return LoadedBlocks(words, scales, tuple(indices), high, offsets)


def dot_products(
    kernel: KernelBuilder,
    arguments: ProjectionArguments,
    tiles: Sequence[InputBlocks],
    block_index: Scalar,
    weights: LoadedBlocks,
    sums: Sequence[Array],
) -> None:
    """Add to each row's sum the dot product of its loaded block with the block of the input at ``block_index`` of a
    tile; for several tiles, each with sums of its own, weights are unpacked once.
    """
    fmt, weight = arguments.facts.weight, arguments.weight
    parts = fmt.scales_a_block if weights.scales is not None else 1
    quads = tiles[0].quads // parts
    inputs = []
    for tile in tiles:
        x = kernel.local("x_quads", tile.quads, "float32x4")
        start = kernel.local("start", parts, "float32x4")
        total = kernel.local("x_sum", parts, "float32x4") if fmt.offset else None
        dot = kernel.local("dot", 1, "float32x4")
        for j in range(tile.quads):
            x[j] = tile.quad(block_index, j)
        if fmt.bits is not None:
            # The contribution of the codes of zeros, subtracted once for all rows.
            for j, zero in enumerate(fmt.block_zeros):
                of_zero = x[j] * number(-zero, "float32x4")
                start[j // quads] = start[j // quads] + of_zero if j % quads else of_zero
                if total is not None:
                    total[j // quads] = total[j // quads] + x[j] if j % quads else x[j]
        inputs.append((x, start, total, dot))
    for i in range(weights.words.buffer.shape[0].value):
        high = [] if weights.high is None else [weights.high[i * fmt.high_bits + j] for j in range(fmt.high_bits)]
        for j, codes in enumerate(weight.block_quads(weights.words[i], high)):
            part, first, last = j // quads, j % quads == 0, j % quads == quads - 1
            for (x, start, total, dot), sum_of in zip(inputs, sums, strict=True):
                product = codes * x[j]
                dot[0] = (start[part] if first else dot[0]) + product if fmt.bits is not None or not first else product
                if last:
                    of_part = None if total is None else total[part]
                    sum_of[i] = sum_of[i] + scaled(arguments, weights, i * parts + part, sum_lanes(dot[0]), of_part)


def dot_products_of_rows(
    kernel: KernelBuilder,
    arguments: ProjectionArguments,
    tiles: Sequence[InputBlocks],
    block_index: Scalar,
    weights: LoadedBlocks,
    sums: Sequence[Array],
) -> None:
    """As `dot_products`, quad by quad: for several tiles, the quads of one block alone would fill the registers of
    Adreno, Apple and Intel GPUs (`make gpu-static`: four tiles spilled 105, 288 and 428).
    """
    fmt, weight, rows = arguments.facts.weight, arguments.weight, range(weights.words.buffer.shape[0].value)
    parts = fmt.scales_a_block if weights.scales is not None else 1
    quads = tiles[0].quads // parts
    x = kernel.local("x_quads", len(tiles), "float32x4")
    codes = kernel.local("codes_of_row", 1, "float32x4")
    dots = [kernel.local("dots", len(tiles), "float32x4") for _ in rows]
    start = kernel.local("start", len(tiles), "float32x4") if fmt.bits is not None else None
    total = kernel.local("x_sum", len(tiles), "float32x4") if fmt.offset else None
    unpacked = []
    for i in rows:
        high = [] if weights.high is None else [weights.high[i * fmt.high_bits + j] for j in range(fmt.high_bits)]
        unpacked.append(weight.each_quad(weights.words[i], high))
    for j in range(tiles[0].quads):
        part, first = j // quads, j % quads == 0
        for t, tile in enumerate(tiles):
            x[t] = tile.quad(block_index, j)
            if start is not None:
                of_zero = x[t] * number(-fmt.block_zeros[j], "float32x4")
                start[t] = of_zero if first else start[t] + of_zero
            if total is not None:
                total[t] = x[t] if first else total[t] + x[t]
        for i in rows:
            codes[0] = next(unpacked[i])
            for t in range(len(tiles)):
                dots[i][t] = codes[0] * x[t] if first else dots[i][t] + codes[0] * x[t]
        if j % quads < quads - 1:
            continue
        for i in rows:
            for t, sum_of in enumerate(sums):
                value = sum_lanes(dots[i][t] if start is None else dots[i][t] + start[t])
                of_part = None if total is None else total[t]
                sum_of[i] = sum_of[i] + scaled(arguments, weights, i * parts + part, value, of_part)


def scaled(
    arguments: ProjectionArguments, weights: LoadedBlocks, part: int, value: Scalar, total: Scalar | None
) -> Scalar:
    """The dot product of one part of a weight row's block. ``total``: the sum of the input's quads, for offsets."""
    fmt, weight = arguments.facts.weight, arguments.weight
    if weights.scales is None:
        return value
    index = weights.scale_indices[part]
    scale = weight.scale_in(weights.scales[part], index)
    if weights.offsets is None or total is None:
        return value * scale
    of_offset = sum_lanes(total) * weight.scale_in(weights.offsets[part], index)
    return value * scale + of_offset if fmt.offset == "b" else (value - of_offset) * scale


def chunk_of(weight: PackedMatrix, block: Scalar) -> Scalar:
    """The chunk, which has a scale, that a block belongs to."""
    return block // (weight.blocks // weight.chunks)


def halves_of(fmt: WeightFormat, weight: PackedMatrix, block: Scalar) -> list[Scalar | int]:
    """The halves of a block's chunk whose scales the block needs: with groups of 16, a block of 32 columns has two, and
    a block of 16 has one. Larger groups ignore the half.
    """
    blocks_a_chunk = weight.blocks // weight.chunks
    first = block % blocks_a_chunk if fmt.scales_a_chunk == 2 and blocks_a_chunk == 2 else 0
    return [first + part for part in range(fmt.scales_a_block)]
