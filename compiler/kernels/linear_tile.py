"""linear for many rows, and expert_linear for rows that `group_pairs` has grouped by expert: matrix times matrix, one
tile of input rows by one tile of weight rows per workgroup.

One thread: some quads of input rows by one or two quads of weight rows, summed in float32 registers; a quad of rows is
a vector. With products in float16 (`half_products.py`), the sums of 32 columns are float16.
One workgroup: ``depth`` columns of both operands at a time are loaded into workgroup memory, transposed so that a
vector holds one column of four rows; weights are dequantized once for all input rows of the tile. For a gated
projection, each quad of weight rows is two rows of the gate and the two corresponding rows of the up projection.
Needs: workgroup memory for both tiles, 8 KB for 64 by 64 results and 16 columns in float32; shader-f16 if a tile or
products are float16. For a LayerNorm, each workgroup first computes the mean and the variance of its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..ir.expr import Expr
from ..quant.base import GROUP
from .builder import (
    Array,
    Kernel,
    KernelBuilder,
    Scalar,
    all_of,
    cast,
    guard_below,
    magnitude,
    maximum,
    minimum,
    number,
    rsqrt,
    select,
    truncated_quotient,
)
from .experts import Groups, used
from .half_products import factor_and_unit, largest_exponent
from .maths import rms_factor
from .projection import LoadArguments, Projection, ProjectionArguments
from .vectors import lane_of, largest_of_lanes, splat, vector


@dataclass(frozen=True, slots=True)
class TileShape:
    """``rows`` input rows by ``outputs`` weight rows per workgroup (multiples of 4), ``depth`` columns at a time (a
    divisor of 32).

    ``dtype`` is that of the weights in workgroup memory. It is also that of the input if the input is float16 anyway
    and has no norm, which could exceed float16's range. ``thread_outputs``: the weight rows of a thread, 4 or 8.

    ``products``: their dtype; with float16, workgroup memory holds codes of formats that `multiplies_halves`, 32
    columns of them, and rows scaled to be small, both in float16. The load may be an RMS norm.
    """

    rows: int = 64
    outputs: int = 64
    depth: int = 16
    threads: int = 128
    dtype: str = "float32"
    thread_outputs: int = 4
    products: str = "float32"


def linear_tile(name: str, facts: Projection, shape: TileShape) -> Kernel:
    kernel = KernelBuilder(name)
    arguments = ProjectionArguments(kernel, facts, blocks=False, reads_chosen=False)
    weight, norm, threads = arguments.weight, arguments.norm, shape.threads
    layer_norm = arguments.loads[0] if facts.before_norm and arguments.loads[0].weights is not None else None
    halves = 2 if facts.gated else 1
    outputs = shape.outputs // halves
    row_quads, output_quads, depth_quads = shape.rows // 4, shape.outputs // 4, shape.depth // 4
    thread_quads = shape.thread_outputs // 4
    thread_columns = output_quads // thread_quads
    thread_rows = threads // thread_columns
    quads_per_thread = row_quads // thread_rows
    in_halves = shape.products == "float16"
    assert not in_halves or (shape.dtype == "float16" and shape.depth == GROUP and not facts.before_norm), shape
    assert threads % row_quads == 0, "a thread fills the same rows in every step, whose squares it sums"

    groups = None if facts.experts is None else Groups(facts.experts, shape.rows)
    pair_of_row = None if groups is None else groups.pair_of_row(kernel)
    expert_of_tile = None if groups is None else groups.expert_of_tile(kernel)
    row_blocks: Expr = ["ceildiv", facts.batch, shape.rows] if groups is None else groups.tiles
    column_block, row_block = kernel.grid(["ceildiv", facts.outputs, outputs], row_blocks)
    thread = kernel.threads(threads)
    batch = kernel.size(facts.batch)
    # 1, which compilers do not know: they unroll loops over a row and load all of it first. For a LayerNorm of 384
    # columns, Adreno's spilled 54 values and the M1's 224 (`make gpu-static`).
    once = minimum(batch, 1)
    steps: Scalar | int = weight.chunks * 32 // shape.depth
    if expert_of_tile is not None:
        expert = kernel.let("expert", expert_of_tile[row_block])
        arguments.read_expert(kernel, used(expert))
        steps = kernel.let("steps", select(expert >= 0, steps, 0))

    def result_row(in_tile: Scalar) -> Scalar:
        """The row of the result that a row of the tile computes; none if it is negative, or not in the batch."""
        row = row_block * shape.rows + in_tile
        return row if pair_of_row is None else pair_of_row[row]

    def input_row(in_tile: Scalar) -> Scalar:
        """The row of x that a row of the tile reads."""
        row = result_row(in_tile)
        if facts.experts is None:
            return minimum(row, batch - 1)
        return truncated_quotient(used(row), facts.experts.chosen) if facts.experts.shares_rows else used(row)

    thread_row, thread_column = thread // thread_columns, thread % thread_columns

    has_norm = norm is not None or layer_norm is not None
    keeps_dtype = in_halves or (facts.x_dtype == shape.dtype == "float16" and not has_norm)
    x_dtype = "float16" if keeps_dtype else "float32"
    x_tile = kernel.shared("x_tile", (shape.depth, row_quads), f"{x_dtype}x4")
    weight_tile = kernel.shared("weight_tile", (shape.depth, output_quads), f"{shape.dtype}x4")
    # The parts of a sum over a row, of the threads that fill it.
    parts = kernel.shared("row_parts", (threads // row_quads, row_quads), "float32x4") if in_halves else x_tile
    # An RMS norm's factor is that of the results; a LayerNorm is complete before the products.
    scale_eps = None if facts.norm is None else facts.norm["eps"]
    squares = kernel.local("squares", 1, "float32x4", fill=0)
    loaded = kernel.local("loaded", 4, "float32x4")
    column = kernel.local("column", 1, "float32x4")
    count = quads_per_thread * 4 * thread_quads
    sums = kernel.local("sums", count, "float32x4", fill=0)
    x = kernel.local("x", quads_per_thread, f"{shape.products}x4")
    w = kernel.local("w", 1, "float32x4")
    weights = kernel.local("weights", thread_quads, f"{shape.products}x4")

    def load_rows(quad: Scalar, row_quad: Scalar, reach: int) -> None:
        for i in range(4):
            loaded[i] = arguments.x.quad(input_row(row_quad * 4 + i), quad, reach)

    def keep_parts(part: Scalar) -> None:
        """Store each thread's part for a quad of rows, in the columns of a float32 tile, which is not in use."""
        kernel.barrier()
        parts[thread // row_quads, thread % row_quads] = part
        kernel.barrier()

    def of_rows(row_quad: Scalar) -> Scalar:
        """The sum of the stored parts of a quad of rows."""
        return sum((parts[j, row_quad] for j in range(1, threads // row_quads)), parts[0, row_quad])

    def row_means(name: str, term: Callable[[Scalar], Scalar]) -> Array:
        """The mean of a term of each column, for the quad of rows that this thread fills."""
        total = kernel.local(f"{name}_total", 1, "float32x4", fill=0)
        turns, quads = threads // row_quads, -(-facts.columns // 4)
        with kernel.loop("turn", once * -(-quads // turns)) as turn:
            quad = kernel.let("quad", turn * turns + thread // row_quads)
            with kernel.when(guard_below(quad, quads, turns)):
                load_rows(quad, thread % row_quads, quads)
                for k in range(4):
                    column[0] = vector(*(lane_of(loaded[i], k) for i in range(4)))
                    with kernel.when(True if facts.columns % 4 == 0 else quad * 4 + k < facts.columns):
                        total[0] = total[0] + term(column[0])
        mean = kernel.local(name, 1, "float32x4")
        keep_parts(total[0])
        mean[0] = of_rows(thread % row_quads) * splat(number(1 / facts.columns, "float32"))
        return mean

    mean = row_means("mean", lambda each: each) if layer_norm is not None else None
    variance = None if mean is None else row_means("variance", lambda each: (each - mean[0]) * (each - mean[0]))

    def center(layer_norm: LoadArguments, quad: Scalar, row_quad: Scalar, mean: Array, variance: Array) -> None:
        """Replace the loaded quads of rows by those of their LayerNorm."""
        for i in range(4):
            inverse = rsqrt(lane_of(variance[0], i) + number(layer_norm.part["eps"], "float32"))
            loaded[i] = (loaded[i] - splat(lane_of(mean[0], i))) * splat(inverse) * w[0]
            if layer_norm.bias is not None:
                loaded[i] = loaded[i] + layer_norm.bias.quad(0, quad, weight.chunks * 8)
            row = kernel.let("kept_row", row_block * shape.rows + row_quad * 4 + i)
            layer_norm.keep(loaded[i], row, quad, all_of(column_block == 0, row < batch))

    def scale_rows() -> tuple[Array, Array, Array]:
        """The factors of the quad of rows that this thread fills, those that take back every quad's, and memory for the
        scales of the tile's weights.
        """
        most = kernel.local("most", 4, "float32x4", fill=0)
        turns, quads = threads // row_quads, -(-facts.columns // 4)
        with kernel.loop("turn", once * -(-quads // turns)) as turn:
            quad = kernel.let("quad", turn * turns + thread // row_quads)
            with kernel.when(guard_below(quad, quads, turns)):
                load_rows(quad, thread % row_quads, quads)
                if norm is not None:
                    w[0] = norm.quad(quad, quads)
                for i in range(4):
                    most[i] = maximum(most[i], magnitude(loaded[i] if norm is None else loaded[i] * w[0]))
        keep_parts(vector(*(largest_of_lanes(most[i]) for i in range(4))))
        factor = kernel.local("factor", 1, "float32x4")
        factor[0] = parts[0, thread % row_quads]
        for j in range(1, turns):
            factor[0] = maximum(factor[0], parts[j, thread % row_quads])
        multiple, unit = factor_and_unit(factor[0], largest_exponent(facts.weight, shape.depth))
        units = kernel.shared("units", (row_quads,), "float32x4")
        with kernel.when(thread < row_quads):
            units[thread] = unit
        factor[0] = multiple
        return factor, units, kernel.shared("weight_scales", (output_quads,), "float32x4")

    scaled = scale_rows() if in_halves else None

    def fill_x(step: Scalar, index: Scalar) -> None:
        row_quad, depth_quad = index % row_quads, index // row_quads
        quad = step * depth_quads + depth_quad
        load_rows(quad, row_quad, weight.chunks * 8)
        if norm is not None:
            w[0] = norm.quad(quad, weight.chunks * 8)
        if layer_norm is not None and layer_norm.weights is not None and mean is not None and variance is not None:
            w[0] = layer_norm.weights.quad(quad, weight.chunks * 8)
            center(layer_norm, quad, row_quad, mean, variance)
        for k in range(4):
            column[0] = vector(*(lane_of(loaded[i], k) for i in range(4)))
            if scale_eps is not None:
                squares[0] = squares[0] + column[0] * column[0]
                column[0] = column[0] * splat(lane_of(w[0], k))
            if scaled is not None:
                column[0] = column[0] * scaled[0][0]
            x_tile[depth_quad * 4 + k, row_quad] = cast(column[0], f"{x_dtype}x4")

    def fill_weight(step: Scalar, index: Scalar) -> None:
        output_quad, depth_quad = index % output_quads, index // output_quads
        quad = step * depth_quads + depth_quad
        rows = []
        for i in range(4):
            output = minimum(column_block * outputs + tile_output(facts, output_quad, i), facts.outputs - 1)
            rows.append(arguments.first_row + output + (i // 2 * facts.outputs if facts.gated else 0))
            codes = weight.quad(rows[i], quad // 8, quad % 8)
            if scaled is None:
                loaded[i] = weight.weights(codes, rows[i], quad // 8, quad % 8 // 4)
            else:
                loaded[i] = codes - number(facts.weight.zero, "float32x4")
        for k in range(4):
            column[0] = vector(*(lane_of(loaded[i], k) for i in range(4)))
            weight_tile[depth_quad * 4 + k, output_quad] = cast(column[0], f"{shape.dtype}x4")
        if scaled is not None and not facts.weight.per_row:
            with kernel.when(depth_quad == 0):
                scaled[2][output_quad] = vector(*(weight.scale(row, step) for row in rows))

    x_count, weight_count = row_quads * depth_quads, output_quads * depth_quads
    with kernel.loop("step", steps) as step:
        kernel.barrier()
        for i in range(-(-x_count // threads)):
            with kernel.when(guard_below(thread + i * threads, x_count, threads)):
                fill_x(step, thread + i * threads)
        if x_count + weight_count <= threads:
            # Each operand is loaded by separate threads.
            with kernel.when(thread >= threads - weight_count):
                fill_weight(step, thread - (threads - weight_count))
        else:
            for i in range(-(-weight_count // threads)):
                with kernel.when(guard_below(thread + i * threads, weight_count, threads)):
                    fill_weight(step, thread + i * threads)
        kernel.barrier()
        totals = sums if scaled is None else kernel.local("totals", count, "float16x4", fill=0)
        with kernel.loop("k", shape.depth) as k:
            for c in range(thread_quads):
                weights[c] = cast(weight_tile[k, thread_column + c * thread_columns], f"{shape.products}x4")
            for i in range(quads_per_thread):
                x[i] = cast(x_tile[k, thread_row + i * thread_rows], f"{shape.products}x4")
                for r in range(4):
                    for c in range(thread_quads):
                        each = (i * 4 + r) * thread_quads + c
                        totals[each] = totals[each] + splat(lane_of(x[i], r)) * weights[c]
        if scaled is not None:
            for c in range(thread_quads):
                w[0] = 1 if facts.weight.per_row else scaled[2][thread_column + c * thread_columns]
                for each in range(c, count, thread_quads):
                    sums[each] = sums[each] + cast(totals[each], "float32x4") * w[0]

    if scale_eps is not None:
        keep_parts(squares[0])
    for i in range(quads_per_thread):
        row_quad = thread_row + i * thread_rows
        if scale_eps is not None:
            column[0] = of_rows(row_quad)
            column[0] = vector(*(rms_factor(lane_of(column[0], r), facts.columns, scale_eps) for r in range(4)))
        if scaled is not None:
            column[0] = scaled[1][row_quad] if scale_eps is None else column[0] * scaled[1][row_quad]
        for r in range(4):
            row = kernel.let("row", result_row(row_quad * 4 + r))
            for c in range(thread_quads):
                w[0] = sums[(i * 4 + r) * thread_quads + c]
                if scale_eps is not None or scaled is not None:
                    w[0] = w[0] * splat(lane_of(column[0], r))
                with kernel.when(row < batch if groups is None else row >= 0):
                    for j in range(4 // halves):
                        in_tile = tile_output(facts, thread_column + c * thread_columns, j)
                        output = kernel.let("output", column_block * outputs + in_tile)
                        dots = [lane_of(w[0], j + half * 2) for half in range(halves)]
                        arguments.store(kernel, row, output, dots, guard_below(output, facts.outputs, outputs))
    return kernel.finish()


def tile_output(facts: Projection, quad: Scalar, i: int) -> Scalar:
    """The output, counted from the tile's first, of row i of a quad of weight rows."""
    return quad * 2 + i % 2 if facts.gated else quad * 4 + i
