"""Input rows as `linear_mma` reads them: 16-bit floats, times the norm's weight if there is a norm, in the order of the
tensor cores.

One workgroup: one row. One thread: octets of eight columns. Each row is scaled by a power of two that brings its
largest value to 1,024 to 2,048, so that no model's activations exceed float16's range. "row_factors" holds the factor
of each row's results, the norm's included.

128 columns form 16 octets, four of each of four chunks. Octet w of chunk t has index 4 w + t, so that four neighbouring
threads of a warp read contiguous memory. The order of columns in an octet is 0 2 1 3 4 6 5 7, in which 4-bit weights
are unpacked from a word in pairs.
"""

from __future__ import annotations

from ...ir.expr import Expr
from ..builder import (
    Array,
    Kernel,
    KernelBuilder,
    lane_of,
    magnitude,
    maximum,
    minimum,
    number,
    reinterpret,
    splat,
    sum_lanes,
    vector,
)
from ..linear_vector import power_of_two
from ..maths import rms_factor
from ..projection import Rows, guard_below
from .functions import pair

BLOCK = 128
OCTETS = BLOCK // 8
# The exponent bits of a float32, and the exponent of 1,024 relative to 1.
EXPONENT_BITS = 0x7F800000
SCALED_EXPONENT = 10


def blocks_of(columns: int) -> int:
    return -(-columns // BLOCK)


def rows16_buffers(kernel: KernelBuilder, batch: Expr, columns: int, *, write: bool) -> tuple[Array, Array]:
    """The rows (batch, octets), each octet in 16 bytes, and their factors (batch,)."""
    rows = kernel.scratch("rows16", (batch, blocks_of(columns) * OCTETS), "uint32x4", write=write)
    return rows, kernel.scratch("row_factors", (batch,), "float32", write=write)


def rows16(
    name: str,
    batch: Expr,
    columns: int,
    x_dtype: str,
    norm_eps: float | None,
    dtype: str,
    x_step: float | None = None,
) -> Kernel:
    """``dtype`` is the dtype of the 16-bit floats. ``x_step`` rounds the input; see `fake_quantized`."""
    kernel = KernelBuilder(name)
    x = Rows(kernel, "x", batch, columns, x_dtype, x_step)
    norm = Rows(kernel, "norm", 1, columns, "float32") if norm_eps is not None else None
    rows, factors = rows16_buffers(kernel, batch, columns, write=True)
    count = blocks_of(columns) * OCTETS
    threads = min(256, max(32, power_of_two(count)))
    rounds = -(-count // threads)

    row, _ = kernel.grid(batch)
    thread = kernel.threads(threads)
    values = kernel.local("values", 2 * rounds, "float32x4", fill=0)
    squares = kernel.local("squares", 1, "float32x4", fill=0)
    largest = kernel.local("largest", 1, "float32", fill=0)
    for i in range(rounds):
        octet = thread + i * threads
        with kernel.when(guard_below(octet, count, threads)):
            for half in range(2):
                quad_index, quad = 2 * i + half, octet * 2 + half
                values[quad_index] = x.quad(row, quad, count * 2)
                if norm is not None:
                    squares[0] = squares[0] + values[quad_index] * values[quad_index]
                    values[quad_index] = values[quad_index] * norm.quad(0, quad, count * 2)
                for lane in range(4):
                    largest[0] = maximum(largest[0], magnitude(lane_of(values[quad_index], lane)))

    exponent = kernel.local("exponent", 1, "uint32")
    row_largest = kernel.folded("largest_partials", thread, threads, largest[0], maximum)
    exponent[0] = reinterpret(row_largest, "uint32") & number(EXPONENT_BITS, "uint32")
    # The exponent is limited so that both the scale and its inverse are normal numbers.
    exponent[0] = minimum(
        maximum(exponent[0], number((SCALED_EXPONENT + 1) << 23, "uint32")), number(254 << 23, "uint32")
    )
    scale = kernel.let(
        "scale", reinterpret(number((2 * 127 + SCALED_EXPONENT) << 23, "uint32") - exponent[0], "float32")
    )
    factor = reinterpret(exponent[0] - number(SCALED_EXPONENT << 23, "uint32"), "float32")
    if norm_eps is not None:
        total = kernel.folded("square_partials", thread, threads, sum_lanes(squares[0]), lambda one, other: one + other)
        factor = factor * rms_factor(total, columns, norm_eps)
    with kernel.when(thread == 0):
        factors[row] = factor

    for i in range(rounds):
        octet = kernel.let("octet", thread + i * threads)
        with kernel.when(guard_below(octet, count, threads)):
            scaled = [kernel.let("scaled", values[2 * i + half] * splat(scale)) for half in range(2)]
            pairs = [pair(dtype, lane_of(each, low), lane_of(each, low + 2)) for each in scaled for low in range(2)]
            rows[row, octet // OCTETS * OCTETS + octet % 4 * 4 + octet % OCTETS // 4] = vector(*pairs)
    return kernel.finish()
