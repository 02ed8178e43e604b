"""linear and gated_linear for few rows: matrix times vector.

One thread: every ``lanes``-th chunk of 32 columns, for ``rows_per_thread`` weight rows at once, so each input value is loaded once for all.
One workgroup: ``threads / lanes`` such groups of rows, for one input row; partial sums meet in workgroup memory.
Needs: nothing beyond WebGPU's defaults. Sums are float32; an RMSNorm is folded in as a sum of squares.
"""

from __future__ import annotations

from .builder import Kernel, KernelBuilder, Scalar, all_of, minimum, number, rsqrt, sum_lanes
from .projection import Projection, ProjectionArguments, guard_below


def linear_vector(facts: Projection, *, threads: int = 64, rows_per_thread: int = 4) -> Kernel:
    kernel = KernelBuilder(f"{facts.name}_vector")
    arguments = ProjectionArguments(kernel, facts, vectors=True)
    weight, chunks = arguments.weight, arguments.weight.chunks
    lanes = min(threads, max(power_of_two(chunks), rows_per_thread))
    block = threads // lanes * rows_per_thread
    halves = 2 if facts.gated else 1

    column_block, row = kernel.grid(["ceildiv", facts.outputs, block], facts.batch)
    thread = kernel.threads(threads)
    lane, group = kernel.let("lane", thread % lanes), kernel.let("group", thread // lanes)
    first_output = kernel.let("first_output", column_block * block + group * rows_per_thread)

    sums = kernel.local("sums", rows_per_thread * halves, "float32", fill=0)
    squares = kernel.local("squares", 1, "float32x4", fill=0)
    x = kernel.local("x_quads", 8, "float32x4")
    x_sum = kernel.local("x_sum", 1, "float32x4")
    dot = kernel.local("dot", 1, "float32x4")
    with kernel.loop("step", -(-chunks // lanes)) as step:
        chunk = kernel.let("chunk", step * lanes + lane)
        with kernel.when(guard_below(chunk, chunks, lanes)):
            x_sum[0] = 0
            for j in range(8):
                x[j] = arguments.x.quad(row, chunk * 8 + j)
                if arguments.norm is not None:
                    squares[0] = squares[0] + x[j] * x[j]
                    x[j] = x[j] * arguments.norm.quad(0, chunk * 8 + j)
                if weight.zero:
                    x_sum[0] = x_sum[0] + x[j]
            for half in range(halves):
                for r in range(rows_per_thread):
                    # Rows beyond the last are computed as copies of it and not stored: cheaper than a branch.
                    output = first_output + r
                    if facts.outputs % block:
                        output = minimum(output, facts.outputs - 1)
                    weight_row = kernel.let("weight_row", output + half * facts.outputs)
                    dot[0] = x_sum[0] * number(-weight.zero, "float32x4") if weight.zero else number(0, "float32x4")
                    for j, (low, high) in enumerate(weight.octets(weight_row, chunk)):
                        dot[0] = dot[0] + low * x[2 * j]
                        dot[0] = dot[0] + high * x[2 * j + 1]
                    here = half * rows_per_thread + r
                    sums[here] = sums[here] + sum_lanes(dot[0]) * weight.scale(weight_row, chunk)

    planes = rows_per_thread * halves + (arguments.norm is not None)
    partial = kernel.shared("partial", (planes, threads), "float32")
    for plane in range(rows_per_thread * halves):
        partial[plane, thread] = sums[plane]
    if arguments.norm is not None:
        partial[planes - 1, thread] = sum_lanes(squares[0])

    def fold(mine: Scalar, other: Scalar) -> None:
        for plane in range(planes):
            partial[plane, mine] = partial[plane, mine] + partial[plane, other]

    kernel.fold(thread, lane, lanes, fold)
    results = [partial[lane + half * rows_per_thread, group * lanes] for half in range(halves)]
    if facts.norm_eps is not None:
        mean = partial[planes - 1, group * lanes] * number(1 / facts.columns, "float32")
        results = [result * rsqrt(mean + number(facts.norm_eps, "float32")) for result in results]
    output = kernel.let("output", first_output + lane)
    inside = guard_below(output, facts.outputs, block)
    arguments.store(kernel, row, output, results, all_of(lane < rows_per_thread, inside))
    return kernel.finish()


def power_of_two(value: int) -> int:
    """The smallest power of two that is not below ``value``."""
    return 1 << (value - 1).bit_length()
