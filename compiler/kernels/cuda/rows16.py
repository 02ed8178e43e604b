"""Input rows as `linear_mma` reads them: 16-bit floats, times the norm's weight if there is a norm, in the order of the
tensor cores.

One workgroup: one row. One thread: octets of eight columns. Each row is scaled by a power of two that brings its
largest value to 1,024 to 2,048, so that no model's activations exceed float16's range. "row_factors" holds the factor
of each row's results, the norm's included.

128 columns form 16 octets, four of each of four chunks. The order of columns in an octet is 0 2 1 3 4 6 5 7, in which
4-bit weights are unpacked from a word in pairs: two pairs for each of two matrix products. 16 rows are stored together,
in the order of a warp's registers for one of these products: thread 4 m + t reads the pairs of rows m and m + 8 of an
octet of chunk t as one element (PTX ISA, fragment A of mma.m16n8k16). The rows beyond the last are not written.

`linear_wgmma` reads "swizzled" rows: 64 rows and 64 columns form a tile, in the order of shared memory's 128-byte
swizzle. A matrix product has 16 columns, two pairs of each of the four chunks: 2 t and 2 t + 1 are the first pair of
chunk t, and 2 t + 8 and 2 t + 9 the second one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.expr import Expr
from ...ir.ops.parts import Part
from ...quant.base import GROUP
from ..builder import (
    Array,
    Kernel,
    KernelBuilder,
    Scalar,
    guard_below,
    magnitude,
    maximum,
    minimum,
    number,
    reinterpret,
)
from ..linear_vector import power_of_two
from ..maths import rms_factor
from ..projection import Rows
from ..vectors import lane_of, splat, sum_lanes
from .functions import pair

BLOCK = 128
OCTETS = BLOCK // 8
CHUNK_OCTETS = GROUP // 8
# The rows of one matrix product.
TILE_ROWS = 16
# The rows of a tile of swizzled rows.
SWIZZLED_ROWS = 64
# The exponent bits of a float32, and the exponent of 1,024 relative to 1.
EXPONENT_BITS = 0x7F800000
SCALED_EXPONENT = 10
# The most tiles of a result for which `linear_mma` may split the columns: more fill a GPU without that.
MAX_SPLIT_TILES = 256


def blocks_of(columns: int) -> int:
    return -(-columns // BLOCK)


def swizzled_buffers(kernel: KernelBuilder, batch: Expr, columns: int, *, write: bool) -> tuple[Array, Array]:
    """Swizzled rows (groups of 64, tiles of 64 columns, 512 units of 16 bytes), and the factors of the rows (batch,).
    To write, a unit has 4 words.
    """
    shape = (["ceildiv", batch, SWIZZLED_ROWS], blocks_of(columns) * 2, SWIZZLED_ROWS * 8)
    rows = (
        kernel.scratch("rows16", (*shape, 4), "uint32", write=True)
        if write
        else kernel.scratch("rows16", shape, "uint32x4")
    )
    return rows, kernel.scratch("row_factors", (batch,), "float32", write=write)


def rows16_buffers(kernel: KernelBuilder, batch: Expr, columns: int, *, write: bool) -> tuple[Array, Array]:
    """The rows (groups of 16, octets of a chunk, threads of two products), each element 16 bytes, and the factors of
    the rows (batch,). To write, an element has 4 words.
    """
    shape = (["ceildiv", batch, TILE_ROWS], blocks_of(columns) * CHUNK_OCTETS, 2 * 32)
    rows = (
        kernel.scratch("rows16", (*shape, 4), "uint32", write=True)
        if write
        else kernel.scratch("rows16", shape, "uint32x4")
    )
    return rows, kernel.scratch("row_factors", (batch,), "float32", write=write)


def arrivals_buffer(kernel: KernelBuilder) -> Array:
    """A counter for each tile of a result whose columns several workgroups of `linear_mma` share."""
    return kernel.scratch("arrivals", (MAX_SPLIT_TILES,), "uint32", write=True)


def rows16(
    name: str,
    batch: Expr,
    columns: int,
    x_dtype: str,
    load: Sequence[Part],
    dtype: str,
    split: bool = False,
    swizzled: bool = False,
) -> Kernel:
    """``dtype`` is the dtype of the 16-bit floats. ``load`` is an RMS norm or a rounding. ``split``: also set the
    counters of `arrivals_buffer` to 0.
    """
    kernel = KernelBuilder(name)
    x = Rows(kernel, "x", batch, columns, x_dtype, load)
    norm = load[0] if load and load[0]["op"] == "rms_norm" else None
    norm_row = 0 if norm is None else norm["row"] or 0
    weights = None if norm is None else Rows(kernel, "load0_weight", 1 + norm_row, columns, "float32")
    rows, factors = (swizzled_buffers if swizzled else rows16_buffers)(kernel, batch, columns, write=True)
    arrivals = arrivals_buffer(kernel) if split else None
    count = blocks_of(columns) * OCTETS
    threads = min(256, max(32, power_of_two(count)))
    rounds = -(-count // threads)

    row, _ = kernel.grid(batch)
    thread = kernel.threads(threads)
    if arrivals is not None:
        with kernel.when(row == 0), kernel.loop("i", MAX_SPLIT_TILES // threads) as i:
            arrivals[i * threads + thread] = number(0, "uint32")
    values = kernel.local("values", 2 * rounds, "float32x4", fill=0)
    squares = kernel.local("squares", 1, "float32x4", fill=0)
    largest = kernel.local("largest", 1, "float32", fill=0)
    for i in range(rounds):
        octet = thread + i * threads
        with kernel.when(guard_below(octet, count, threads)):
            for half in range(2):
                quad_index, quad = 2 * i + half, octet * 2 + half
                values[quad_index] = x.quad(row, quad, count * 2)
                if weights is not None:
                    squares[0] = squares[0] + values[quad_index] * values[quad_index]
                    values[quad_index] = values[quad_index] * weights.quad(norm_row, quad, count * 2)
                for lane in range(4):
                    largest[0] = maximum(largest[0], magnitude(lane_of(values[quad_index], lane)))

    row_largest = kernel.folded("largest_partials", thread, threads, largest[0], maximum)
    scale, factor = scale_of(kernel, row_largest)
    if norm is not None:
        total = kernel.folded("square_partials", thread, threads, sum_lanes(squares[0]), lambda one, other: one + other)
        factor = factor * rms_factor(total, columns, norm["eps"])
    with kernel.when(thread == 0):
        factors[row] = factor

    for i in range(rounds):
        octet = kernel.let("octet", thread + i * threads)
        with kernel.when(guard_below(octet, count, threads)):
            scaled = [kernel.let("scaled", values[2 * i + half] * splat(scale)) for half in range(2)]
            pairs = [pair(dtype, lane_of(each, low), lane_of(each, low + 2)) for each in scaled for low in range(2)]
            chunk, below = octet % OCTETS // CHUNK_OCTETS, row % TILE_ROWS // 8
            if swizzled:
                own = octet % CHUNK_OCTETS
                tile = row // SWIZZLED_ROWS, octet // OCTETS * 2 + own // 2
                for word, value in enumerate(pairs):
                    unit = (own % 2 * 4 + word) ^ row % 8
                    rows[(*tile, row % SWIZZLED_ROWS * 8 + unit, chunk)] = value
                continue
            location = row // TILE_ROWS, octet // OCTETS * CHUNK_OCTETS + octet % CHUNK_OCTETS
            for word, value in enumerate(pairs):
                rows[(*location, word // 2 * 32 + row % 8 * 4 + chunk, word % 2 * 2 + below)] = value
    return kernel.finish()


def scale_of(kernel: KernelBuilder, largest: Scalar) -> tuple[Scalar, Scalar]:
    """The power of two that brings a number to 1,024 to 2,048, and its inverse."""
    exponent = kernel.local("exponent", 1, "uint32")
    exponent[0] = reinterpret(largest, "uint32") & number(EXPONENT_BITS, "uint32")
    # The exponent is limited so that both the scale and its inverse are normal numbers.
    exponent[0] = minimum(
        maximum(exponent[0], number((SCALED_EXPONENT + 1) << 23, "uint32")), number(254 << 23, "uint32")
    )
    scale = kernel.let(
        "scale", reinterpret(number((2 * 127 + SCALED_EXPONENT) << 23, "uint32") - exponent[0], "float32")
    )
    return scale, reinterpret(exponent[0] - number(SCALED_EXPONENT << 23, "uint32"), "float32")
