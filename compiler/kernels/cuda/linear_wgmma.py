"""linear for many rows on the tensor cores of Hopper GPUs: 16-bit operands, float32 sums. x is what
`rows16` left in scratch, swizzled.

One group of four warps: ``tiles`` times 64 outputs (for a gated projection, of each half) by ``rows`` input rows. The
weights are the operand in registers: a thread reads one chunk of 32 columns of two rows of each tile unchanged, and
converts an octet of each to 16-bit floats while the tensor cores multiply the octet before. The input is the operand in
shared memory.
One workgroup: ``groups`` groups side by side along the outputs. A stage is a block of 128 columns. The first thread
copies the input's tiles whole, ``stages`` - 2 blocks ahead: one barrier of each stage counts their bytes, another one
the warps that no longer use it, so a group may be a block ahead of the others. Every thread copies its own weights. The
first weights are copied before the kernel waits for the previous one.
Splits are those of `linear_mma`. Without them, workgroups with the same inputs or weights run at the same time.
Needs: sm_90a; more shared memory than a kernel can declare, because only a launch aligns it for tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from ...ir.expr import Expr
from ...quant.kernel_format import WeightFormat
from ..builder import Array, Kernel, KernelBuilder, Scalar, address_of, all_of, guard_below, minimum, truncated_quotient
from ..projection import Projection, ProjectionArguments
from .functions import (
    arrive_at,
    commit_copies,
    commit_products,
    compute_now,
    copy_tile,
    create_barrier,
    expect_bytes,
    multiply_asynchronously,
    publish_barriers,
    start_products,
    use_sums,
    wait_for_older_copies,
    wait_for_older_products,
    wait_for_phase,
    wait_for_previous_kernel,
)
from .linear_mma import CHUNKS, PARTS, SplitSums, thread_bytes, weights_type
from .rows16 import SWIZZLED_ROWS, blocks_of, swizzled_buffers

GROUP_THREADS = 128
# The outputs of one product.
TILE_OUTPUTS = 64
# The tiles of 64 columns in a block, and their units of 16 bytes.
PANELS = 2
UNITS = SWIZZLED_ROWS * 8
# Results that are computed before the first of them is stored, so that their reads overlap.
STORE_BATCH = 8
# The blocks of rows whose workgroups run at the same time.
RASTER = 8


@dataclass(frozen=True, slots=True)
class WgmmaShape:
    """A workgroup has ``rows`` input rows, a multiple of 64; see above for the other parameters. ``dtype`` is "float16"
    or "bfloat16". A shape with ``splits`` > 1 computes at most ``max_batch`` rows. ``early``: a block's first weights
    are converted before the last products of the block before have ended, not after.
    """

    rows: int
    tiles: int
    groups: int
    dtype: str
    stages: int = 3
    splits: int = 1
    max_batch: int = 0
    early: bool = False

    @property
    def threads(self) -> int:
        return GROUP_THREADS * self.groups

    @property
    def outputs(self) -> int:
        return TILE_OUTPUTS * self.tiles * self.groups


def linear_wgmma(name: str, facts: Projection, shape: WgmmaShape) -> Kernel:
    kernel = KernelBuilder(name)
    arguments = ProjectionArguments(kernel, facts, blocks=True, reads_x=False)
    rows64, factors = swizzled_buffers(kernel, facts.batch, facts.columns, write=False)
    halves, row_groups, threads = 2 if facts.gated else 1, shape.rows // SWIZZLED_ROWS, shape.threads
    products, tile_sums = halves * shape.tiles, shape.rows // 2
    blocks, splits, stages = blocks_of(facts.columns), shape.splits, shape.stages
    split_blocks = -(-blocks // splits)
    assert split_blocks * (splits - 1) < blocks, (facts.columns, shape)
    row_blocks: Expr = ["ceildiv", facts.batch, shape.rows]
    column_blocks = -(-facts.outputs // shape.outputs)
    quads = products * tile_sums // 4
    shared_sums = SplitSums(kernel, facts, shape, column_blocks, quads) if splits > 1 else None

    group_x, group_y = kernel.grid(column_blocks, row_blocks if splits == 1 else ["mul", row_blocks, splits])
    thread = kernel.threads(threads)
    batch = kernel.size(facts.batch)
    split: Scalar | int = 0
    if splits == 1:
        row_block, column_block = raster(kernel, group_x, group_y, column_blocks, kernel.size(row_blocks))
    else:
        row_block, column_block, split = group_y // splits, group_x, kernel.let("split", group_y % splits)
    lane, warp = kernel.let("lane", thread % 32), kernel.let("warp", thread // 32)
    first_row = kernel.let("first_row", row_block * shape.rows)
    first_output = kernel.let(
        "first_output",
        column_block * shape.outputs + warp // 4 * (TILE_OUTPUTS * shape.tiles) + warp % 4 * 16 + lane // 4,
    )
    quarter = kernel.let("quarter", lane % 4)
    first_block = kernel.let("first_block", split * split_blocks)
    count = kernel.let("count", split_blocks if blocks % splits == 0 else minimum(split_blocks, blocks - first_block))

    # The first array, which has the alignment of the whole.
    tile = kernel.shared("tile", (stages, PANELS, row_groups, UNITS), "uint32x4")
    sums = kernel.local("sums", products * tile_sums, "float32", fill=0)
    weight_rows = [
        kernel.let(
            "weight_row",
            minimum(first_output + (j * TILE_OUTPUTS + below * 8), facts.outputs - 1) + half * facts.outputs,
        )
        for half in range(halves)
        for j in range(shape.tiles)
        for below in range(2)
    ]
    weights = weights_type(facts.weight)(
        kernel, arguments, shape.dtype, stages, threads, thread, weight_rows, buffers=2
    )
    row_factors = kernel.shared("row_factors", (shape.rows,), "float32")
    barriers = kernel.shared("barriers", (2 * stages,), "uint32x2")
    ahead = stages - 2
    assert ahead >= 1, shape

    def chunk_of(block: Scalar | int) -> Scalar:
        # Beyond the last chunk, a copy of it is loaded, which is multiplied by zeros of the input.
        return kernel.let("chunk", minimum((first_block + block) * CHUNKS + quarter, arguments.weight.chunks - 1))

    def copy_rows(block: Scalar | int, stage: Scalar | int) -> None:
        last = kernel.size(["ceildiv", facts.batch, SWIZZLED_ROWS]) - 1
        with kernel.when(thread == 0):
            barrier = address_of(barriers, stage)
            if not isinstance(block, int):
                with kernel.when(block >= stages):
                    wait_for_phase(address_of(barriers, stages + stage), (block // stages - 1) % 2)
            expect_bytes(barrier, PANELS * row_groups * UNITS * 16)
            for i in range(row_groups):
                # Rows beyond the last are not stored, so any rows will do.
                group = kernel.let("group", minimum(row_block * row_groups + i, last))
                for panel in range(PANELS):
                    source = address_of(rows64, group, (first_block + block) * PANELS + panel, 0)
                    copy_tile(address_of(tile, stage, panel, i, 0), source, UNITS * 16, barrier)

    with kernel.when(thread == 0):
        for stage in range(stages):
            create_barrier(address_of(barriers, stage), 1)
            create_barrier(address_of(barriers, stages + stage), threads // 32)
        publish_barriers()
    for start in range(ahead):
        with kernel.when(True if start == 0 else start < count):
            weights.start_copies(kernel.let("start", start), chunk_of(start))
        commit_copies()
    wait_for_previous_kernel()
    for start in range(ahead):
        with kernel.when(True if start == 0 else start < count):
            copy_rows(start, start)
    for start in range(0, shape.rows, threads):
        index = kernel.let("index", thread + start)
        with kernel.when(index < shape.rows if start + threads > shape.rows else True):
            row_factors[index] = factors[minimum(first_row + index, batch - 1)]
    kernel.barrier()

    def unpack(octet: int) -> None:
        weights.unpack(octet, octet % 2)
        compute_now(products * 8, address_of(weights.octets, octet % 2 * products * 8))

    def multiply(octet: int, stage: Scalar) -> None:
        buffer = octet % 2
        start_products()
        for half in range(2):
            for n in range(products):
                upper, lower = (
                    address_of(weights.octets, ((buffer * products + n) * 2 + below) * 4 + half * 2)
                    for below in range(2)
                )
                for part in range(0, row_groups, 2):
                    multiply_asynchronously(
                        min(2, row_groups - part) * SWIZZLED_ROWS,
                        shape.dtype,
                        address_of(sums, n * tile_sums + part * SWIZZLED_ROWS // 2),
                        upper,
                        lower,
                        address_of(tile, stage, octet // 2, part, (octet % 2 * 2 + half) * 2),
                    )
        commit_products()

    def unpack_first(block: Scalar | int) -> None:
        """The first octet of a block, whose weights have arrived then."""
        wait_for_older_copies(ahead - 1)
        weights.load(block, chunk_of(block))
        unpack(0)

    def wait_for_rows(block: Scalar | int) -> None:
        wait_for_phase(address_of(barriers, block % stages), block // stages % 2)

    def start_copies(block: Scalar) -> None:
        with kernel.when(block < count):
            weights.start_copies(block, chunk_of(block))
            copy_rows(block, block % stages)
        commit_copies()

    unpack_first(kernel.let("start", 0))
    if shape.early:
        wait_for_rows(0)
    with kernel.loop("block", count) as block:
        stage = kernel.let("stage", block % stages)
        if not shape.early:
            wait_for_rows(block)
        multiply(0, stage)
        if not shape.early:
            start_copies(block + ahead)
        for octet in range(1, PARTS):
            unpack(octet)
            multiply(octet, stage)
            if shape.early and octet == 1:
                # Two groups of products are in flight, which take longer than this.
                start_copies(block + ahead)
            # The registers of the octet before are free.
            wait_for_older_products(1)
        # Beyond the last block, the products of these weights are never computed.
        unpack_first(block + 1)
        if shape.early:
            # This branch keeps the compiler from waiting for the products before it converts the weights.
            with kernel.when(block + 1 < count):
                wait_for_rows(block + 1)
        # The compiler runs products one by one if some are in flight at the end of a loop.
        wait_for_older_products(0)
        with kernel.when(lane == 0):
            arrive_at(address_of(barriers, stages + stage))
    # The last groups are empty; waiting for them ends the copies of this thread in order.
    wait_for_older_copies(0)
    use_sums(products * tile_sums, address_of(sums, 0))

    tile_index = row_block * column_blocks + column_block
    with kernel.when(True if shared_sums is None else shared_sums.add(sums, thread, tile_index, split)):
        store(kernel, arguments, shape, sums, row_factors, first_row, first_output, quarter)
    return kernel.finish()


def raster(
    kernel: KernelBuilder, x: Scalar, y: Scalar, column_blocks: int, row_blocks: Scalar
) -> tuple[Scalar, Scalar]:
    """A workgroup's block of rows and of outputs. `RASTER` blocks of rows and as many of outputs as then run at the
    same time read less than the last cache holds.
    """
    if column_blocks == 1:
        return y, x
    size = RASTER * column_blocks
    index = kernel.let("index", y * column_blocks + x)
    first = kernel.let("first", truncated_quotient(index, size) * RASTER)
    high = kernel.let("high", minimum(row_blocks - first, RASTER))
    within = kernel.let("within", index - first * column_blocks)
    column = kernel.let("column", truncated_quotient(within, high))
    # Computed once, and not again for every address.
    place = kernel.local("place", 2, "int32")
    place[0], place[1] = first + within - column * high, column
    return place[0], place[1]


def store(
    kernel: KernelBuilder,
    arguments: ProjectionArguments,
    shape: WgmmaShape,
    sums: Array,
    row_factors: Array,
    first_row: Scalar,
    first_output: Scalar,
    quarter: Scalar,
) -> None:
    """Store a thread's results: for each tile, outputs ``first_output`` and the 8th after it, of every row whose place
    among eight is 2 ``quarter`` or the next.
    """
    facts, batch = arguments.facts, kernel.size(arguments.facts.batch)
    halves, tile_sums = 2 if facts.gated else 1, shape.rows // 2
    for j, below in product(range(shape.tiles), range(2)):
        output = kernel.let("output", first_output + (j * TILE_OUTPUTS + below * 8))
        is_output = guard_below(output, facts.outputs, shape.outputs)
        inside = output if is_output is True else kernel.let("inside", minimum(output, facts.outputs - 1))
        for start in range(0, shape.rows // 4, STORE_BATCH):
            values = []
            for item in range(start, start + STORE_BATCH):
                own = kernel.let("own", item // 2 * 8 + item % 2 + quarter * 2)
                row = kernel.let("row", first_row + own)
                dots = [
                    sums[(half * shape.tiles + j) * tile_sums + item // 2 * 4 + below * 2 + item % 2] * row_factors[own]
                    for half in range(halves)
                ]
                value = arguments.result(minimum(row, batch - 1), inside, dots)
                values.append((row, kernel.let("value", value)))
            for row, value in values:
                with kernel.when(all_of(row < batch, is_output)):
                    arguments.write(row, output, value)


def shared_bytes(fmt: WeightFormat, shape: WgmmaShape, *, gated: bool) -> int:
    """The shared memory of a kernel, without that of `SplitSums`."""
    weights = 2 * (2 if gated else 1) * shape.tiles * shape.threads * thread_bytes(fmt)
    stage = weights + PANELS * shape.rows // SWIZZLED_ROWS * UNITS * 16 + 2 * 8
    return shape.stages * stage + 4 * shape.rows
