"""Input rows as `linear_mma` reads them: 16-bit floats, times the norm's weight where there is one, in the order of the tensor cores.

One workgroup: one row. One thread: octets of eight columns, every so-manyeth. Each row is scaled by a power of two that brings its largest
value to 1,024 to 2,048, so that no model's activations leave float16's range; what to multiply results with goes to "row_factors", with the
norm's factor in it.

128 columns are 16 octets, four of each of four chunks: octet w of chunk t is at place 4 w + t, so that what four neighbouring threads of a
warp read lies side by side. In an octet the columns' order is 0 2 1 3 4 6 5 7, which is how 4-bit weights come out of a word two by two.
"""

from __future__ import annotations

from ..builder import (
    Array,
    Kernel,
    KernelBuilder,
    Scalar,
    extern,
    lane_of,
    magnitude,
    maximum,
    minimum,
    number,
    reinterpret,
    rsqrt,
    splat,
    sum_lanes,
    vector,
)
from ..linear_vector import power_of_two
from ..projection import Projection, Rows, guard_below

BLOCK = 128
OCTETS = BLOCK // 8
SHORT = {"float16": "f16", "bfloat16": "bf16"}
# The exponent's bits of a float32, and where 1,024 lies above 1.
EXPONENT_BITS = 0x7F800000
SCALED_EXPONENT = 10


def blocks_of(facts: Projection) -> int:
    return -(-facts.columns // BLOCK)


def rows16_buffers(kernel: KernelBuilder, facts: Projection, *, write: bool) -> tuple[Array, Array]:
    """The rows (batch, octets), each octet in 16 bytes, and their factors (batch,)."""
    rows = kernel.scratch("rows16", (facts.batch, blocks_of(facts) * OCTETS), "uint32x4", write=write)
    return rows, kernel.scratch("row_factors", (facts.batch,), "float32", write=write)


def rows16_name(facts: Projection, dtype: str) -> str:
    norm = "_norm" if facts.norm_eps is not None else ""
    source = {**SHORT, "float32": "f32"}[facts.x_dtype]
    return f"rows16_{facts.columns}_{facts.batch.lower()}{norm}_{source}_{SHORT[dtype]}"


def rows16(facts: Projection, dtype: str) -> Kernel:
    kernel = KernelBuilder(rows16_name(facts, dtype))
    x = Rows(kernel, "x", facts.batch, facts.columns, facts.x_dtype)
    norm = Rows(kernel, "norm", 1, facts.columns, "float32") if facts.norm_eps is not None else None
    rows, factors = rows16_buffers(kernel, facts, write=True)
    count = blocks_of(facts) * OCTETS
    threads = min(256, max(32, power_of_two(count)))
    rounds = -(-count // threads)

    row, _ = kernel.grid(facts.batch)
    thread = kernel.threads(threads)
    values = kernel.local("values", 2 * rounds, "float32x4", fill=0)
    squares = kernel.local("squares", 1, "float32x4", fill=0)
    largest = kernel.local("largest", 1, "float32", fill=0)
    for i in range(rounds):
        octet = thread + i * threads
        with kernel.when(guard_below(octet, count, threads)):
            for half in range(2):
                place, quad = 2 * i + half, octet * 2 + half
                values[place] = x.quad(row, quad, count * 2)
                if norm is not None:
                    squares[0] = squares[0] + values[place] * values[place]
                    values[place] = values[place] * norm.quad(0, quad, count * 2)
                for lane in range(4):
                    largest[0] = maximum(largest[0], magnitude(lane_of(values[place], lane)))

    exponent = kernel.local("exponent", 1, "uint32")
    exponent[0] = reinterpret(fold(kernel, "largest_places", thread, threads, largest[0], maximum), "uint32") & number(
        EXPONENT_BITS, "uint32"
    )
    # Kept where both the scale and its inverse are ordinary numbers.
    exponent[0] = minimum(maximum(exponent[0], number((SCALED_EXPONENT + 1) << 23, "uint32")), number(254 << 23, "uint32"))
    scale = kernel.let("scale", reinterpret(number((2 * 127 + SCALED_EXPONENT) << 23, "uint32") - exponent[0], "float32"))
    factor = reinterpret(exponent[0] - number(SCALED_EXPONENT << 23, "uint32"), "float32")
    if facts.norm_eps is not None:
        total = fold(kernel, "square_places", thread, threads, sum_lanes(squares[0]), lambda one, other: one + other)
        factor = factor * rsqrt(total * number(1 / facts.columns, "float32") + number(facts.norm_eps, "float32"))
    with kernel.when(thread == 0):
        factors[row] = factor

    for i in range(rounds):
        octet = kernel.let("octet", thread + i * threads)
        with kernel.when(guard_below(octet, count, threads)):
            scaled = [kernel.let("scaled", values[2 * i + half] * splat(scale)) for half in range(2)]
            pairs = [pair(dtype, lane_of(each, low), lane_of(each, low + 2)) for each in scaled for low in range(2)]
            rows[row, octet // OCTETS * OCTETS + octet % 4 * 4 + octet % OCTETS // 4] = vector(*pairs)
    return kernel.finish()


def fold(kernel: KernelBuilder, name: str, thread: Scalar, threads: int, value: Scalar, combine: object) -> Scalar:
    """``value`` of all threads, combined."""
    places = kernel.shared(name, (threads,), "float32")
    places[thread] = value

    def into(mine: Scalar, other: Scalar) -> None:
        places[mine] = combine(places[mine], places[other])  # type: ignore[operator]

    kernel.fold(thread, thread, threads, into)
    return kernel.let("folded", places[0])


def pair(dtype: str, low: Scalar, high: Scalar) -> Scalar:
    """Two floats as 16-bit floats in one word."""
    return extern("uint32", f"pair_{SHORT[dtype]}", low, high)
