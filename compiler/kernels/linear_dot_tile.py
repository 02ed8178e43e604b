"""linear for many rows with int8 activations: matrix times matrix, as integer products of groups of 32 columns; one
tile of input rows by one tile of weight rows per workgroup.

Its input is what `quantize_rows` has written.
One thread: 4 input rows by 4 weight rows, whose sums it holds in registers. They are as far apart as there are threads
in that direction, so adjacent threads read adjacent memory. For a gated projection, two of the weight rows are of the
gate and two are the corresponding rows of the up projection.
One workgroup: the codes of a group of all its rows at a time are in workgroup memory; those of weights are unpacked
once for all input rows of the tile.
Needs: the WGSL language feature `integer_groups.FEATURE`. Sums within a group are exact, sums of groups float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from .builder import Kernel, KernelBuilder, Scalar, guard_below, minimum
from .integer_groups import WORDS, IntegerGroups, input_group
from .projection import Projection, ProjectionArguments
from .quantize_rows import groups_of, row_buffers
from .vectors import lane_of, vector

# The rows of each operand for which a thread has sums.
ROWS = 4


@dataclass(frozen=True, slots=True)
class DotTileShape:
    """``rows`` input rows by ``outputs`` weight rows per workgroup, whose threads have 16 results each. ``signed``:
    products of signed bytes.
    """

    rows: int = 64
    outputs: int = 64
    signed: bool = False

    @property
    def threads(self) -> int:
        return self.rows * self.outputs // ROWS**2


def linear_dot_tile(name: str, facts: Projection, shape: DotTileShape) -> Kernel:
    """``facts`` load nothing."""
    kernel = KernelBuilder(name)
    fmt, threads = facts.weight, shape.threads
    x_codes, x_factors = row_buffers(kernel, facts.batch, facts.columns, halves=fmt.scales_a_chunk == 2)
    arguments = ProjectionArguments(kernel, facts, blocks=True, reads_x=False)
    halves = 2 if facts.gated else 1
    outputs, thread_columns, thread_rows = shape.outputs // halves, shape.outputs // ROWS, shape.rows // ROWS
    assert shape.rows + shape.outputs <= threads, "each row of a tile is read by a thread of its own"

    column_block, row_block = kernel.grid(["ceildiv", facts.outputs, outputs], ["ceildiv", facts.batch, shape.rows])
    thread = kernel.threads(threads)
    batch = kernel.size(facts.batch)
    thread_row, thread_column = thread // thread_columns, thread % thread_columns
    products = IntegerGroups(kernel, arguments.weight, fmt, signed=shape.signed)
    parts, integer = products.parts, "int32" if shape.signed else "uint32"
    factors = 0 if fmt.per_row else fmt.factors_a_group

    x_tile = kernel.shared("x_tile", (2, shape.rows), "uint32x4")
    x_numbers = kernel.shared("x_numbers", (1 + parts, shape.rows), "float32")
    weight_tile = kernel.shared("weight_tile", (2, shape.outputs), "uint32x4")
    numbers = kernel.shared("numbers", (factors * parts, shape.outputs), "float32") if factors else None
    corrections = None if shape.signed else kernel.shared("corrections", (parts, shape.outputs), "uint32")
    sums = kernel.local("sums", ROWS * ROWS, "float32", fill=0)
    dots = kernel.local("dots", ROWS * ROWS, integer)
    x = kernel.local("x", ROWS, "uint32x4")
    w = kernel.local("w", 1, "uint32x4")

    def fill_x(chunk: Scalar, index: Scalar) -> None:
        row = minimum(row_block * shape.rows + index, batch - 1)
        group = input_group(kernel, x_codes, x_factors, row, chunk, parts)
        for half in range(2):
            x_tile[half, index] = vector(*group.words[half * 4 : half * 4 + 4])
        for place, each in enumerate((group.scale, *group.sums)):
            x_numbers[place, index] = each

    def fill_weights(chunk: Scalar, index: Scalar) -> None:
        output = minimum(column_block * outputs + index % outputs, facts.outputs - 1)
        loaded = products.load(output + index // outputs * facts.outputs, chunk)
        words = products.words(loaded.codes)
        for half in range(2):
            weight_tile[half, index] = vector(*words[half * 4 : half * 4 + 4])
        for place, raw in enumerate(each for each in (loaded.scales, loaded.offsets) if each):
            for part, value in enumerate(products.numbers(raw)):
                if numbers is not None:
                    numbers[place * parts + part, index] = value
        for part in range(parts if corrections is not None else 0):
            correction = products.correction(products.of_part(words, part))
            if corrections is not None and correction is not None:
                corrections[part, index] = correction

    def add_part(part: int) -> None:
        """Add the products of the codes in ``dots`` to the sums."""
        totals = [kernel.let("total", x_numbers[1 + part, row_at(i)]) for i in range(ROWS)]
        zeros = [products.of_zero(total) for total in totals]
        scales = [kernel.let("x_scale", x_numbers[0, row_at(i)]) for i in range(ROWS)]
        for j in range(ROWS):
            column = column_at(j)
            correction = None if corrections is None else kernel.let("correction", corrections[part, column])
            own = []
            if numbers is not None:
                own = [kernel.let("number", numbers[place * parts + part, column]) for place in range(factors)]
            for i in range(ROWS):
                value = products.exact(dots[i * ROWS + j], correction)
                value = products.weighted(value, zeros[i], totals[i], own)
                sums[i * ROWS + j] = sums[i * ROWS + j] + value * scales[i]

    def row_at(i: int) -> Scalar:
        return thread_row + i * thread_rows

    def column_at(j: int) -> Scalar:
        return thread_column + j * thread_columns

    with kernel.loop("chunk", groups_of(facts.columns)) as chunk:
        kernel.barrier()
        with kernel.when(thread < shape.rows):
            fill_x(chunk, thread)
        with kernel.when(thread >= threads - shape.outputs):
            fill_weights(chunk, thread - (threads - shape.outputs))
        kernel.barrier()
        for half in range(2):
            starts = half * parts % 2 == 0
            for i in range(ROWS):
                x[i] = x_tile[half, row_at(i)]
            for j in range(ROWS):
                w[0] = weight_tile[half, column_at(j)]
                mine = [lane_of(w[0], k) for k in range(WORDS // 2)]
                for i in range(ROWS):
                    dot = products.dot(mine, [lane_of(x[i], k) for k in range(WORDS // 2)])
                    dots[i * ROWS + j] = dot if starts else dots[i * ROWS + j] + dot
            if parts == 2 or half == 1:
                add_part(half if parts == 2 else 0)

    for i in range(ROWS):
        row = kernel.let("row", row_block * shape.rows + row_at(i))
        with kernel.when(row < batch):
            for j in range(ROWS // halves):
                output = kernel.let("output", column_block * outputs + column_at(j))
                results = [sums[i * ROWS + j + half * ROWS // halves] for half in range(halves)]
                arguments.store(kernel, row, output, results, guard_below(output, facts.outputs, outputs))
    return kernel.finish()
