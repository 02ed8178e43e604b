"""linear and gated_linear for many rows: matrix times matrix, 32 input rows by 32 weight rows a workgroup.

One thread: 4 input rows by 4 weight rows, summed in float32x4 registers along the columns.
One workgroup: 64 threads, 8 by 8 of those; chunks of 32 columns of both operands pass through workgroup memory, weights dequantized once.
Of a gated projection the 32 weight rows are 16 of the gate and the 16 of the up projection that belong to them.
Needs: 9.4 KB of workgroup memory.
"""

from __future__ import annotations

from .builder import Kernel, KernelBuilder, Scalar, all_of, minimum, number, rsqrt, splat, sum_lanes
from .projection import Projection, ProjectionArguments, guard_below

TILE = 32
QUADS = 8
# One more than the quads of a row, so that rows do not all begin in the same memory bank.
STRIDE = QUADS + 1


def linear_tile(facts: Projection) -> Kernel:
    kernel = KernelBuilder(f"{facts.name}_tile")
    arguments = ProjectionArguments(kernel, facts, vectors=False)
    weight = arguments.weight
    halves = 2 if facts.gated else 1
    outputs_per_tile = TILE // halves

    column_block, row_block = kernel.grid(["ceildiv", facts.outputs, outputs_per_tile], ["ceildiv", facts.batch, TILE])
    thread = kernel.threads(64)
    thread_row, thread_column = kernel.let("thread_row", thread // 8), kernel.let("thread_column", thread % 8)
    batch = kernel.size(facts.batch)

    # While loading, a thread fills half a chunk of one row of each operand.
    load_row, load_half = kernel.let("load_row", thread // 2), kernel.let("load_half", thread % 2)
    x_row = kernel.let("x_row", minimum(row_block * TILE + load_row, batch - 1))
    output = minimum(column_block * outputs_per_tile + load_row % outputs_per_tile, facts.outputs - 1)
    weight_row = kernel.let("weight_row", output + load_row // outputs_per_tile * facts.outputs)

    x_tile = kernel.shared("x_tile", (TILE, STRIDE), "float32x4")
    weight_tile = kernel.shared("weight_tile", (TILE, STRIDE), "float32x4")
    squares = kernel.local("squares", 1, "float32", fill=0)
    quad = kernel.local("quad", 1, "float32x4")
    sums = kernel.local("sums", 16, "float32x4", fill=0)
    x = kernel.local("x_quads", 4, "float32x4")

    with kernel.loop("chunk", weight.chunks) as chunk:
        kernel.barrier()
        for j in range(4):
            quad[0] = arguments.x.quad(x_row, chunk * QUADS + load_half * 4 + j)
            if arguments.norm is not None:
                squares[0] = squares[0] + sum_lanes(quad[0] * quad[0])
                quad[0] = quad[0] * arguments.norm.quad(0, chunk * QUADS + load_half * 4 + j)
            x_tile[load_row, load_half * 4 + j] = quad[0]
        scale = kernel.let("scale", weight.scale(weight_row, chunk))
        for j in range(2):
            for k, codes in enumerate(weight.octet(weight_row, chunk, load_half * 2 + j)):
                value = codes - number(weight.zero, "float32x4") if weight.zero else codes
                quad[0] = value * splat(scale)
                weight_tile[load_row, load_half * 4 + j * 2 + k] = quad[0]
        kernel.barrier()
        with kernel.loop("column", QUADS) as column:
            for i in range(4):
                x[i] = x_tile[thread_row * 4 + i, column]
            for j in range(4):
                quad[0] = weight_tile[tile_row(thread_column, j), column]
                for i in range(4):
                    sums[i * 4 + j] = sums[i * 4 + j] + x[i] * quad[0]

    if facts.norm_eps is not None:
        row_squares = kernel.shared("row_squares", (64,), "float32")
        row_squares[thread] = squares[0]
        kernel.barrier()
    for i in range(4):
        row = kernel.let("row", row_block * TILE + thread_row * 4 + i)
        results = [sum_lanes(sums[i * 4 + j]) for j in range(4)]
        if facts.norm_eps is not None:
            place = (thread_row * 4 + i) * 2
            mean = (row_squares[place] + row_squares[place + 1]) * number(1 / facts.columns, "float32")
            inverse = kernel.let("inverse", rsqrt(mean + number(facts.norm_eps, "float32")))
            results = [result * inverse for result in results]
        pairs = [[results[0], results[2]], [results[1], results[3]]] if facts.gated else [[result] for result in results]
        for j, dots in enumerate(pairs):
            stored = kernel.let("output", column_block * outputs_per_tile + tile_row(thread_column, j))
            arguments.store(kernel, row, stored, dots, all_of(row < batch, guard_below(stored, facts.outputs, outputs_per_tile)))
    return kernel.finish()


def tile_row(thread_column: Scalar, j: int) -> Scalar:
    """The j-th of a thread's four weight rows: two from each half of the tile, so that a gate and its up meet in one thread."""
    return thread_column * 2 + (j % 2 + j // 2 * (TILE // 2))
