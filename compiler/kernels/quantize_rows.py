"""The first kernel of a projection with int8 activations: its input rows as 8-bit codes, with a scale for every 32
columns, in the scratch buffers that the second kernel reads (`linear_dots.py`).

  codes8    (batch, groups, 8) words of four codes each, in the order of columns. A code is signed, or unsigned and 128
            larger, for the two products that WGSL has
  factors8  (batch, groups): the scale, which is the largest magnitude / 127, times the factor of an RMS norm at the end
            of what is loaded; and the sum of the codes, or the sums of both halves of a group

Columns beyond the last are zeros. Magnitudes below 1e-30 become zeros too.

One workgroup: one row. One thread: every ``threads``-th group of 32 columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.expr import Expr
from ..ir.ops.parts import Part
from ..quant.base import GROUP
from .builder import (
    Array,
    Kernel,
    KernelBuilder,
    Scalar,
    cast,
    extern,
    guard_below,
    magnitude,
    maximum,
    number,
    select,
)
from .linear_vector import power_of_two
from .maths import rms_factor
from .packed import WeightFormat
from .projection import InputArguments, Projection
from .vector_parts import InputRow
from .vectors import lane_of, splat, sum_lanes, vector

LARGEST = 127
# The quotient of `LARGEST` by this is finite.
LEAST = 1e-30
# The difference between an unsigned code and a signed one.
BIAS = 128
# The bits in which four signed codes differ from unsigned ones.
SIGNS = 0x80808080
MAX_THREADS, MIN_THREADS = 256, 32
QUADS = GROUP // 4
# The result does not depend on the weights that it is multiplied by.
ANY_WEIGHT = WeightFormat("q4", "float32")


def groups_of(columns: int) -> int:
    return -(-columns // GROUP)


def row_buffers(
    kernel: KernelBuilder, batch: Expr, columns: int, *, halves: bool, write: bool = False
) -> tuple[Array, Array]:
    """The codes (batch, 2 * groups), 16 in each element, and the factors (batch, groups)."""
    groups = groups_of(columns)
    codes = kernel.scratch("codes8", (batch, 2 * groups), "uint32x4", write=write)
    return codes, kernel.scratch("factors8", (batch, groups), "float32x4" if halves else "float32x2", write=write)


def quantize_rows(
    name: str,
    batch: Expr,
    columns: int,
    x_dtype: str,
    load: Sequence[Part] = (),
    halves: bool = False,
    signed: bool = False,
) -> Kernel:
    """``halves``: the sums are those of 16 columns. ``signed``: the codes are signed."""
    kernel = KernelBuilder(name)
    facts = Projection(batch, columns, 0, ANY_WEIGHT, x_dtype, "float32", load=load)
    arguments = InputArguments(kernel, facts)
    codes, factors = row_buffers(kernel, batch, columns, halves=halves, write=True)
    arguments.declare_kept(kernel)
    groups = groups_of(columns)
    threads = min(MAX_THREADS, max(MIN_THREADS, power_of_two(groups)))
    rounds = -(-groups // threads)

    row, _ = kernel.grid(batch)
    thread = kernel.threads(threads)
    input_row = InputRow(kernel, arguments, thread, threads, groups * QUADS, row, True)
    quads = kernel.local("quads", QUADS, "float32x4")
    largest = kernel.local("largest", 1, "float32x4")
    scales = kernel.local("scales", rounds, "float32", fill=0)
    inverse = kernel.local("inverse", 1, "float32")
    totals = kernel.local("totals", rounds * 2, "float32x4")
    for i in range(rounds):
        group = kernel.let("group", thread + i * threads)
        with kernel.when(guard_below(group, groups, threads)):
            largest[0] = 0
            for j in range(QUADS):
                quads[j] = input_row.read(group * QUADS + j)
                largest[0] = maximum(largest[0], magnitude(quads[j]))
            scales[i], inverse[0] = scale_of(load, largest[0])
            words = kernel.local("words", QUADS, "uint32")
            for j in range(QUADS):
                quads[j] = extern("float32x4", "round", quads[j] * splat(inverse[0]))
                word = extern("uint32", "pack4xU8", cast(quads[j] + number(BIAS, "float32x4"), "uint32x4"))
                words[j] = word ^ number(SIGNS, "uint32") if signed else word
            for half in range(2):
                first = half * 4
                codes[row, group * 2 + half] = vector(*(words[first + j] for j in range(4)))
                totals[i * 2 + half] = sum((quads[first + j] for j in range(1, 4)), quads[first])

    factor = None
    if facts.norm is not None:
        squares = kernel.folded("square_sums", thread, threads, input_row.squares, lambda one, other: one + other)
        factor = rms_factor(squares, columns, facts.norm["eps"])
        factor = kernel.let("factor", factor)
    for i in range(rounds):
        group = kernel.let("group", thread + i * threads)
        with kernel.when(guard_below(group, groups, threads)):
            scale = scales[i] if factor is None else scales[i] * factor
            if halves:
                sums = [sum_lanes(totals[i * 2 + half]) for half in range(2)]
                factors[row, group] = vector(scale, *sums, number(0, "float32"))
            else:
                factors[row, group] = vector(scale, sum_lanes(totals[i * 2] + totals[i * 2 + 1]))
    return kernel.finish()


def scale_of(load: Sequence[Part], largest: Scalar) -> tuple[Scalar, Scalar]:
    """The scale of a group's codes, and its inverse. Multiples of a number, -128 to 127 times, are exact."""
    if [part["op"] for part in load] == ["fake_quantize"]:
        step = load[0]["scale"]
        return number(step, "float32"), number(1 / step, "float32")
    top = largest_of(largest)
    exists = top > number(LEAST, "float32")
    inverse = number(LARGEST, "float32") / select(exists, top, number(1, "float32"))
    zero = number(0, "float32")
    return select(exists, top * number(1 / LARGEST, "float32"), zero), select(exists, inverse, zero)


def largest_of(quad: Scalar) -> Scalar:
    return maximum(
        maximum(lane_of(quad, 0), lane_of(quad, 1)),
        maximum(lane_of(quad, 2), lane_of(quad, 3)),
    )
