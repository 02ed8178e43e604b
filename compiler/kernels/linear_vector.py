"""linear for few rows, and expert_linear: matrix times vector, the sums folded in workgroup memory.

One thread: every ``lanes``-th block of 16 bytes of ``rows`` weight rows at once, so each input value is read once for
all of them.
One workgroup: ``threads / lanes`` such groups of rows, for ``x_rows`` input rows, which are read through workgroup
memory, one tile at a time; weights are read and unpacked once for all of them.
Needs: nothing beyond WebGPU's defaults, or shader-f16 for products in float16 (`half_products.py`). Sums are float32,
but with these, those of 32 columns or fewer are float16; an RMSNorm is fused as a sum of squares. For a LayerNorm, each
workgroup first computes the row's mean and variance.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.expr import Expr
from .builder import Array, Kernel, KernelBuilder, Scalar, all_of, guard_below, minimum, select
from .half_products import HalfTile, half_products
from .maths import rms_factor
from .projection import Projection, ProjectionArguments
from .vector_parts import InputTile, dot_products, dot_products_of_rows, load_blocks
from .vectors import sum_lanes, vector


@dataclass(frozen=True, slots=True)
class VectorShape:
    """``threads`` per workgroup, ``lanes`` of them along the columns (a power of two, at least ``rows``), ``rows``
    weight rows per thread (in each half of a gated projection), ``unroll`` blocks of each row loaded before any is
    used. ``products``: their dtype; float16 for weights that `multiplies_halves`. ``x_rows``: the input rows, one with
    experts or products in float16.
    """

    threads: int = 128
    lanes: int = 32
    rows: int = 4
    unroll: int = 1
    products: str = "float32"
    x_rows: int = 1


def linear_vector(name: str, facts: Projection, shape: VectorShape) -> Kernel:
    kernel = KernelBuilder(name)
    arguments = ProjectionArguments(kernel, facts, blocks=True)
    weight, threads, lanes, rows = arguments.weight, shape.threads, shape.lanes, shape.rows
    groups, halves = threads // lanes, 2 if facts.gated else 1
    outputs, blocks = groups * rows, lanes * shape.unroll
    steps = -(-weight.blocks // blocks)
    assert outputs <= threads, "each thread stores one result at most"

    column_blocks: Expr = ["ceildiv", facts.outputs, outputs]
    row_blocks: Expr = facts.batch if shape.x_rows == 1 else ["ceildiv", facts.batch, shape.x_rows]
    if facts.experts is None:
        column_block, row = kernel.grid(column_blocks, row_blocks)
    else:
        # There may be more pairs than workgroups in y.
        row, column_block = kernel.grid(facts.batch, column_blocks)
    thread = kernel.threads(threads)
    if shape.x_rows == 1:
        result_rows, x_rows = [row], [arguments.choose(kernel, row)]
    else:
        # Rows beyond the last are copies of it, and so are their results.
        batch = kernel.size(facts.batch)
        result_rows = [kernel.let("x_row", minimum(row * shape.x_rows + i, batch - 1)) for i in range(shape.x_rows)]
        x_rows = result_rows
    lane, group = thread % lanes, thread // lanes
    first_output = column_block * outputs + group * rows

    sums = [kernel.local("sums", rows * halves, "float32", fill=0) for _ in x_rows]
    make_tile = HalfTile if shape.products == "float16" else InputTile
    tiles = [make_tile(kernel, arguments, thread, threads, blocks, steps, x_row, column_block == 0) for x_row in x_rows]
    rounds = steps if facts.experts is None else kernel.let("steps", select(arguments.has_expert, steps, 0))
    with kernel.loop("step", rounds) as step:
        # The weights are loaded while the workgroup reads its input: nothing before the second barrier waits for them.
        mine = [i * lanes + lane for i in range(shape.unroll)]
        clamp = facts.outputs % outputs != 0
        loaded = [
            load_blocks(kernel, arguments, first_output, rows, step * blocks + block_index, steps * blocks, clamp=clamp)
            for block_index in mine
        ]
        # A float16 tile is written behind a barrier of its own.
        if steps > 1 and not isinstance(tiles[0], HalfTile):
            kernel.barrier()
        for tile in tiles:
            tile.fill(step)
        kernel.barrier()
        for block_index, weights in zip(mine, loaded, strict=True):
            if isinstance(tiles[0], HalfTile):
                half_products(kernel, arguments, tiles[0], block_index, weights, sums[0])
            else:
                add_products = dot_products if len(tiles) == 1 else dot_products_of_rows
                add_products(kernel, arguments, tiles, block_index, weights, sums)

    planes = [
        [*(total[i] for i in range(rows * halves)), *([] if tile.squares is None else [tile.squares])]
        for tile, total in zip(tiles, sums, strict=True)
    ]
    totals = fold_lanes(kernel, thread, threads, lanes, [plane for each in planes for plane in each])
    results = []
    for number in range(len(tiles)):
        first, last = number * len(planes[0]), (number + 1) * len(planes[0]) - 1
        parts = [totals[first + half * rows + thread % rows, thread // rows] for half in range(halves)]
        if facts.norm is not None:
            squares = sum((totals[last, i] for i in range(1, groups)), totals[last, 0])
            inverse = kernel.local("inverse", 1, "float32")
            inverse[0] = rms_factor(squares, facts.columns, facts.norm["eps"])
            parts = [result * inverse[0] for result in parts]
        results.append(parts)
    output = kernel.let("output", column_block * outputs + thread)
    with kernel.when(guard_below(thread, outputs, threads)):
        exists = all_of(guard_below(output, facts.outputs, outputs), arguments.has_expert)
        for result_row, parts in zip(result_rows, results, strict=True):
            arguments.store(kernel, result_row, output, parts, exists)
    return kernel.finish()


def fold_lanes(kernel: KernelBuilder, thread: Scalar, threads: int, lanes: int, planes: list[Scalar]) -> Array:
    """Sums of each plane over every group of ``lanes`` threads, (planes, groups), in workgroup memory.

    This needs two barriers, while halving the threads repeatedly needs one for each halving: one thread computes each
    sum, four lanes at a time.
    """
    groups = threads // lanes
    # One more than the lanes of a group, so that threads that sum side by side read different memory banks.
    partial = kernel.shared("partial", (len(planes), groups, lanes + 1), "float32")
    totals = kernel.shared("totals", (len(planes), groups), "float32")
    total = kernel.local("total", 1, "float32x4")
    for plane, value in enumerate(planes):
        partial[plane, thread // lanes, thread % lanes] = value
    kernel.barrier()
    count = len(planes) * groups
    with kernel.loop("round", -(-count // threads)) as i:
        index = i * threads + thread
        plane, group = index // groups, index % groups
        with kernel.when(guard_below(index, count, threads)):
            total[0] = 0
            with kernel.loop("quad", lanes // 4) as quad:
                total[0] = total[0] + vector(*(partial[plane, group, quad * 4 + k] for k in range(4)))
            totals[plane, group] = sum_lanes(total[0])
    kernel.barrier()
    return totals


def power_of_two(value: int) -> int:
    """The smallest power of two that is not below ``value``."""
    return 1 << (value - 1).bit_length()
