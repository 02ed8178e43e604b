"""linear and gated_linear in float32 arithmetic, for every weight format: the plain kernel.

First tasks: one row of the input each, normed where it is to be, copied to scratch with zeros behind it up to whole groups of 32.
Then one task: OUTPUTS neighbouring outputs (of a gated projection, as many pairs) of all rows, ROWS rows at a time, so that a group of
weights is unpacked once for those. The sum over the columns has a vector of partial sums, group after group.
"""

from __future__ import annotations

from ...quant.base import GROUP
from ..builder import Array, Kernel, Scalar, cast, minimum, number
from ..projection import Projection
from .builder import CpuKernelBuilder, Isa, pieces, ramp
from .math import exp, fused, sum_of_lanes
from .packed import PackedRows
from .rows import each_vector, norm_row

OUTPUTS = 8
ROWS = 4


def linear_float(name: str, isa: Isa, facts: Projection) -> Kernel:
    lanes, columns, batch = isa.lanes, facts.columns, facts.batch
    groups = -(-columns // GROUP)
    kernel = CpuKernelBuilder(name)
    x = kernel.buffer("x", (batch, columns), facts.x_dtype)
    norm = kernel.buffer("norm", (columns,), "float32") if facts.norm_eps is not None else None
    weight = PackedRows(kernel, "weight", facts.weight_rows, columns, facts.weight, lanes)
    finish = Finish(kernel, facts)
    padded = kernel.scratch("x", (batch, groups * GROUP), "float32", write=True)

    with kernel.tasks("row", batch) as row:
        for start, width in pieces(groups * GROUP - columns, lanes):
            padded[row, ramp(columns + start, width)] = number(0, f"float32x{width}" if width > 1 else "float32")
        if norm is not None and facts.norm_eps is not None:
            norm_row(kernel, isa, x, row, norm, columns, facts.norm_eps, padded)
        else:

            def copy(start: Scalar, width: int) -> None:
                padded[row, ramp(start, width)] = cast(x[row, ramp(start, width)], f"float32x{width}" if width > 1 else "float32")

            each_vector(kernel, columns, lanes, copy)

    halves = 2 if facts.gated else 1
    with kernel.tasks("block", -(-facts.outputs // OUTPUTS)) as block, kernel.loop("place", OUTPUTS) as place:
        output = kernel.let("output", block * OUTPUTS + place)
        with kernel.when(True if facts.outputs % OUTPUTS == 0 else output < facts.outputs):
            with kernel.loop("tile", (kernel.size(batch) + (ROWS - 1)) // ROWS) as tile:
                # Rows beyond the last are copies of it, and are not stored.
                rows = [kernel.let("row", minimum(tile * ROWS + i, kernel.size(batch) - 1)) for i in range(ROWS)]
                sums = kernel.local("sums", halves * ROWS, f"float32x{lanes}", fill=0)
                with kernel.loop("group", groups) as group:
                    for half in range(halves):
                        for part, weights in enumerate(weight.group(output + half * facts.outputs, group)):
                            values = kernel.let("weights", weights)
                            for i, row in enumerate(rows):
                                inputs = padded[row, ramp(group * GROUP + part * lanes, lanes)]
                                sums[half * ROWS + i] = fused(values, inputs, sums[half * ROWS + i])
                for i, row in enumerate(rows):
                    with kernel.when(tile * ROWS + i < kernel.size(batch)):
                        finish.store(row, output, [sum_of_lanes(sums[half * ROWS + i]) for half in range(halves)])
    return kernel.finish()


class Finish:
    """What becomes of a dot product: the arguments bias, residual and y of a projection."""

    def __init__(self, kernel: CpuKernelBuilder, facts: Projection) -> None:
        self._facts = facts
        bias_length = facts.weight_rows if facts.gated else facts.total_width
        self._bias = kernel.buffer("bias", (bias_length,), "float32") if facts.bias else None
        self._residual = kernel.buffer("residual", (facts.batch, facts.total_width), "float32") if facts.residual else None
        self._y: Array = kernel.buffer("y", (facts.batch, facts.total_width), facts.y_dtype, write=True)

    def store(self, row: Scalar, output: Scalar, sums: list[Scalar]) -> None:
        """Finish one result from its dot product; of a gated one, from gate's and up's."""
        facts, column = self._facts, output + self._facts.offset
        if facts.gated:
            gate, up = sums
            if self._bias is not None:
                gate, up = gate + self._bias[output], up + self._bias[output + facts.outputs]
            value = gate / (number(1, "float32") + exp(-gate)) * up
        else:
            (value,) = sums
            if self._bias is not None:
                value = value + self._bias[column]
        if self._residual is not None:
            value = value + self._residual[row, column]
        self._y[row, column] = cast(value, facts.y_dtype)
