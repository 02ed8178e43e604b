"""linear for one or two rows: matrix times vector, with weights that are copied asynchronously.

One thread: every ``lanes``-th block of 16 bytes of ``rows`` weight rows at once. It copies them to slots of its own in
shared memory, ``stages`` rounds of blocks before it uses them, so that many bytes are in flight without a register or a
barrier for them. The first copies start before the kernel waits for the previous one: only the input depends on it.
One workgroup: ``threads / lanes`` such groups of rows, for ``x_rows`` input rows, whose weights are unpacked once. The
input is read through workgroup memory, one tile at a time. Warps add their sums by shuffles, then in workgroup memory,
always in the same order.
Needs: sm_80; ``lanes`` a multiple of 32, ``threads`` a power of two. Sums are float32; an RMSNorm is fused as a sum of
squares.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..builder import (
    Array,
    Kernel,
    KernelBuilder,
    Scalar,
    address_of,
    guard_below,
    minimum,
    number,
    result_of,
    size_bytes,
)
from ..maths import rms_factor
from ..projection import Projection, ProjectionArguments
from ..vector_parts import InputTile, LoadedBlocks, chunk_of, dot_products, halves_of
from .functions import (
    commit_copies,
    copy_element,
    unknown,
    wait_for_older_copies,
    wait_for_previous_kernel,
)

WARP = 32
# The most columns of an input row in workgroup memory.
TILE_COLUMNS = 2048


@dataclass(frozen=True, slots=True)
class AsyncShape:
    """``threads`` per workgroup, ``lanes`` of them along the columns, ``rows`` weight rows per thread (in each half of
    a gated projection), ``stages`` slots per thread for each row, ``x_rows`` input rows.
    """

    threads: int
    lanes: int
    rows: int
    stages: int
    x_rows: int = 1

    @property
    def outputs(self) -> int:
        return self.threads // self.lanes * self.rows


class WeightSlots:
    """A thread's slots in workgroup memory: ``stages`` rounds of blocks of several weight rows, and of the words that
    hold their high bits, scales and offsets.
    """

    def __init__(
        self, kernel: KernelBuilder, arguments: ProjectionArguments, shape: AsyncShape, thread: Scalar, rounds: int
    ) -> None:
        fmt, weight = arguments.facts.weight, arguments.weight
        self._kernel, self._weight, self._fmt = kernel, weight, fmt
        self._thread, self._lane, self._lanes, self._rounds = thread, thread % shape.lanes, shape.lanes, rounds
        self.stages = min(shape.stages, rounds)
        self._count = shape.rows * (2 if arguments.facts.gated else 1)

        def slots(name: str, words: int, dtype: str) -> Array:
            return kernel.shared(name, (self.stages, self._count * words, shape.threads), dtype)

        self._blocks = slots("slots", 1, fmt.block_dtype)
        self._high = slots("high_slots", fmt.high_bits, "uint32") if fmt.high_bits else None
        scaled = bool(fmt.scale_dtype) and not fmt.per_row
        scales = fmt.scales_a_block, weight.raw_scale_dtype
        self._scales = slots("scale_slots", *scales) if scaled else None
        self._offsets = slots("offset_slots", *scales) if fmt.offset else None

    def start(self, weight_rows: list[Scalar], index: Scalar) -> None:
        """Start to copy a round of blocks, as one group of copies. Blocks beyond the last are copies of it, which are
        multiplied by zeros of the input.
        """
        kernel, weight, fmt = self._kernel, self._weight, self._fmt
        slot, block = index % self.stages, self._block(index)

        def copy(slots: Array, word: int, source: Scalar, size: int = 4) -> None:
            copy_element(address_of(slots, slot, word, self._thread), source, size)

        for i, row in enumerate(weight_rows):
            copy(self._blocks, i, weight.block_address(row, block), size_bytes(fmt.block_dtype))
            if self._high is not None:
                for j in range(fmt.high_bits):
                    copy(self._high, i * fmt.high_bits + j, weight.high_address(row, block, j))
            if self._scales is None:
                continue
            chunk = kernel.let("chunk", chunk_of(weight, block))
            for part, half in enumerate(halves_of(fmt, weight, block)):
                word = i * fmt.scales_a_block + part
                copy(self._scales, word, weight.scale_address(row, chunk, half)[0])
                if self._offsets is not None:
                    copy(self._offsets, word, weight.offset_address(row, chunk, half)[0])

    def load(self, weight_rows: list[Scalar], index: Scalar) -> LoadedBlocks:
        """A round of blocks whose copies have arrived, in registers."""
        kernel, weight, fmt = self._kernel, self._weight, self._fmt
        slot = index % self.stages

        def loaded(name: str, slots: Array, words: int, dtype: str) -> Array:
            held = kernel.local(name, self._count * words, dtype)
            for i in range(self._count * words):
                held[i] = slots[slot, i, self._thread]
            return held

        words = loaded("words", self._blocks, 1, fmt.block_dtype)
        high = None if self._high is None else loaded("high_words", self._high, fmt.high_bits, "uint32")
        if self._scales is None:
            return LoadedBlocks(words, None, (), high)
        parts, dtype, offsets = fmt.scales_a_block, weight.raw_scale_dtype, None
        scales = loaded("scale_words", self._scales, parts, dtype)
        if self._offsets is not None:
            offsets = loaded("offset_words", self._offsets, parts, dtype)
        block = self._block(index)
        chunk = kernel.let("chunk", chunk_of(weight, block))
        halves = halves_of(fmt, weight, block)
        indices = tuple(weight.raw_scale(row, chunk, half)[1] for row in weight_rows for half in halves)
        return LoadedBlocks(words, scales, indices, high, offsets)

    def _block(self, index: Scalar) -> Scalar:
        block = index * self._lanes + self._lane
        if self._rounds * self._lanes > self._weight.blocks:
            block = minimum(block, self._weight.blocks - 1)
        return self._kernel.let("block", block)


def linear_async(name: str, facts: Projection, shape: AsyncShape) -> Kernel:
    kernel = KernelBuilder(name)
    arguments = ProjectionArguments(kernel, facts, blocks=True)
    weight, threads, lanes, rows = arguments.weight, shape.threads, shape.lanes, shape.rows
    halves, outputs = 2 if facts.gated else 1, shape.outputs
    rounds = -(-weight.blocks // lanes)
    tile_rounds = min(rounds, max(1, TILE_COLUMNS // (lanes * facts.weight.block_columns)))
    tiles = -(-rounds // tile_rounds)

    column_block, row_block = kernel.grid(
        ["ceildiv", facts.outputs, outputs],
        facts.batch if shape.x_rows == 1 else ["ceildiv", facts.batch, shape.x_rows],
    )
    thread = kernel.threads(threads)
    batch = kernel.size(facts.batch)
    lane, group = thread % lanes, thread // lanes
    first_output = column_block * outputs + group * rows
    weight_rows = [
        kernel.let(
            "weight_row",
            (first_output + r if facts.outputs % outputs == 0 else minimum(first_output + r, facts.outputs - 1))
            + half * facts.outputs,
        )
        for half in range(halves)
        for r in range(rows)
    ]
    slots = WeightSlots(kernel, arguments, shape, thread, rounds)
    # With a slot for every round, all copies start at once; otherwise one slot is in use while the others fill.
    ahead = slots.stages if slots.stages == rounds else slots.stages - 1
    assert ahead >= 1, shape
    for index in range(ahead):
        slots.start(weight_rows, number(index, "int32"))
        commit_copies()
    wait_for_previous_kernel()

    if facts.weight.bits is not None and not facts.weight.high_bits:
        weight.hold_masks(unknown)
    x_row = [kernel.let("x_row", minimum(row_block * shape.x_rows + i, batch - 1)) for i in range(shape.x_rows)]
    inputs = [
        InputTile(kernel, arguments, thread, threads, tile_rounds * lanes, tiles, row, column_block == 0)
        for row in x_row
    ]
    count = rows * halves
    sums = [kernel.local("sums", count, "float32", fill=0) for _ in inputs]
    with kernel.loop("tile", tiles) as tile:
        if tiles > 1:
            kernel.barrier()
        for each in inputs:
            each.fill(tile)
        kernel.barrier()
        last_rounds = rounds - tile * tile_rounds
        with kernel.loop("round", tile_rounds if rounds % tile_rounds == 0 else minimum(tile_rounds, last_rounds)) as i:
            index = kernel.let("index", tile * tile_rounds + i)
            wait_for_older_copies(ahead - 1)
            if ahead < rounds:
                with kernel.when(index + ahead < rounds):
                    slots.start(weight_rows, kernel.let("next", index + ahead))
            commit_copies()
            loaded = slots.load(weight_rows, index)
            dot_products(kernel, arguments, inputs, i * lanes + lane, loaded, sums)

    planes = [
        [*(total[i] for i in range(count)), *([] if each.squares is None else [each.squares])]
        for each, total in zip(inputs, sums, strict=True)
    ]
    partial = sums_of_warps(kernel, thread, threads, [plane for each in planes for plane in each])
    warps = lanes // WARP
    output = kernel.let("output", column_block * outputs + thread)
    with kernel.when(guard_below(thread, outputs, threads)):
        for number_, row in enumerate(x_row):
            first = number_ * len(planes[0])
            results = []
            for half in range(halves):
                plane, first_warp = first + half * rows + thread % rows, thread // rows * warps
                results.append(added(kernel, [partial[plane, first_warp + warp] for warp in range(warps)]))
            if inputs[0].squares is not None and facts.norm is not None:
                squares = added(kernel, [partial[first + count, warp] for warp in range(threads // WARP)])
                inverse = kernel.let("inverse", rms_factor(squares, facts.columns, facts.norm["eps"]))
                results = [result * inverse for result in results]
            # A row beyond the last is a copy of it, and so is its result.
            arguments.store(kernel, row, output, results, guard_below(output, facts.outputs, outputs))
    return kernel.finish()


def sums_of_warps(kernel: KernelBuilder, thread: Scalar, threads: int, planes: list[Scalar]) -> Array:
    """The sum of each plane over each warp, (planes, warps), in workgroup memory."""
    partial = kernel.shared("partial", (len(planes), threads // WARP), "float32")
    folded = kernel.local("folded", len(planes), "float32")
    for i, plane in enumerate(planes):
        folded[i] = result_of("float32", "subgroupAdd", plane)
    with kernel.when(thread % WARP == 0):
        for i in range(len(planes)):
            partial[i, thread // WARP] = folded[i]
    kernel.barrier()
    return partial


def added(kernel: KernelBuilder, values: list[Scalar]) -> Scalar:
    return kernel.let("total", sum(values[1:], values[0]))
