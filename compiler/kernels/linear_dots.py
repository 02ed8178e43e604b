"""linear for few rows with int8 activations: matrix times vector, as integer products of groups of 32 columns.

Its input is what `quantize_rows` has written: 40 bytes for each group of columns, which threads with other weight rows
read too, through the cache.
One thread: every ``lanes``-th group of ``rows`` weight rows at once, so each input code is read once for all of them.
One workgroup: ``threads / lanes`` such groups of rows, for one input row.
Needs: the WGSL language feature `integer_groups.FEATURE`. Sums within a group are exact, sums of groups float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.expr import Expr
from .builder import Kernel, KernelBuilder, guard_below, minimum, number, select, sum_of
from .integer_groups import IntegerGroups, input_group
from .linear_vector import fold_lanes
from .projection import Projection, ProjectionArguments
from .quantize_rows import groups_of, row_buffers


@dataclass(frozen=True, slots=True)
class DotShape:
    """``threads`` per workgroup, ``lanes`` of them along the columns (a power of two, at least ``rows``), ``rows``
    weight rows per thread (in each half of a gated projection). ``signed``: products of signed bytes.
    """

    threads: int = 64
    lanes: int = 16
    rows: int = 4
    signed: bool = False


def linear_dots(name: str, facts: Projection, shape: DotShape) -> Kernel:
    """``facts`` load nothing."""
    kernel = KernelBuilder(name)
    fmt, threads, lanes, rows = facts.weight, shape.threads, shape.lanes, shape.rows
    codes, factors = row_buffers(kernel, facts.batch, facts.columns, halves=fmt.scales_a_chunk == 2)
    arguments = ProjectionArguments(kernel, facts, blocks=True, reads_x=False)
    halves, groups = 2 if facts.gated else 1, threads // lanes
    outputs, chunks = groups * rows, groups_of(facts.columns)

    column_blocks: Expr = ["ceildiv", facts.outputs, outputs]
    column_block, row = kernel.grid(column_blocks, facts.batch)
    thread = kernel.threads(threads)
    lane, group = thread % lanes, thread // lanes
    products = IntegerGroups(kernel, arguments.weight, fmt, signed=shape.signed)
    # Rows beyond the last are copies of it, which are not stored.
    weight_rows = []
    for half in range(halves):
        for r in range(rows):
            output = column_block * outputs + group * rows + r
            if facts.outputs % outputs:
                output = minimum(output, facts.outputs - 1)
            weight_rows.append(kernel.let("weight_row", output + half * facts.outputs))

    sums = kernel.local("sums", rows * halves, "float32", fill=0)
    with kernel.loop("step", -(-chunks // lanes)) as step:
        place = kernel.let("place", step * lanes + lane)
        chunk = place if chunks % lanes == 0 else kernel.let("chunk", minimum(place, chunks - 1))
        loaded = [products.load(weight_row, chunk) for weight_row in weight_rows]
        x = input_group(kernel, codes, factors, row, chunk, products.parts)
        scale = x.scale if chunk is place else select(place < chunks, x.scale, number(0, "float32"))
        scale = kernel.let("x_scale", scale)
        zeros = [products.of_zero(total) for total in x.sums]
        zeros = [None if each is None else kernel.let("of_zero", each) for each in zeros]
        for i, weights in enumerate(loaded):
            words, numbers = products.words(weights.codes), (weights.scales, weights.offsets)
            own = [products.numbers(raw) for raw in numbers if raw]
            values = []
            for part in range(products.parts):
                mine = products.of_part(words, part)
                dot = products.dot(mine, products.of_part(x.words, part))
                value = products.exact(dot, products.correction(mine))
                values.append(products.weighted(value, zeros[part], x.sums[part], [each[part] for each in own]))
            sums[i] = sums[i] + sum_of(values) * scale

    totals = fold_lanes(kernel, thread, threads, lanes, [sums[i] for i in range(rows * halves)])
    results = [totals[half * rows + thread % rows, thread // rows] for half in range(halves)]
    output = kernel.let("output", column_block * outputs + thread)
    with kernel.when(guard_below(thread, outputs, threads)):
        arguments.store(kernel, row, output, results, guard_below(output, facts.outputs, outputs))
    return kernel.finish()
