"""The parts that kernels over rows of logits share: chunks of columns, one per task, and the largest logit and sum of
exp of a row.

A vector may begin inside a row and end after it; the elements beyond the row are read and ignored. Buffers of logits
therefore have one additional vector of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..builder import Array, KernelBuilder, Scalar, maximum, minimum, number, reinterpret, select
from ..vectors import fold_lanes, largest_of_lanes, ramp, splat, sum_of_lanes
from .builder import Isa, round_up_quotient
from .math import exp

# The number of columns of a chunk: it fits into the innermost cache and is a multiple of every vector.
CHUNK = 4096
# Below every logit; -LOWEST is above every logit, and marks a logit that is not finite.
LOWEST = -3.4028234e38
# Bits that are set in every infinity and NaN.
INFINITY = 0x7F800000


def num_chunks(columns: int) -> int:
    return -(-columns // CHUNK)


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns [first, stop) of one row, in vectors."""

    kernel: KernelBuilder
    isa: Isa
    first: Scalar
    stop: Scalar

    @contextmanager
    def each(self) -> Iterator[tuple[Scalar, Scalar, Scalar]]:
        """A vector's first column, the number of each, and whether they are below ``stop``."""
        lanes, kernel = self.isa.lanes, self.kernel
        with kernel.loop("vector", round_up_quotient(self.stop - self.first, lanes)) as number_of:
            start = kernel.let("start", self.first + number_of * lanes)
            columns = kernel.let("columns", ramp(start, lanes))
            yield start, columns, columns < splat(self.stop, lanes)


def chunk_of(kernel: KernelBuilder, isa: Isa, chunk: Scalar, columns: int) -> Columns:
    first = kernel.let("first", chunk * CHUNK)
    return Columns(kernel, isa, first, kernel.let("stop", minimum(first + CHUNK, columns)))


def sum_chunk(
    kernel: KernelBuilder, isa: Isa, part: Columns, load: Callable[[Scalar], Scalar], largest: Array, total: Array
) -> None:
    """Set ``largest`` to the largest logit of a chunk, or to -LOWEST if one is not finite, and ``total`` to the sum of
    exp(x - largest).
    """
    lanes = isa.lanes
    highest = kernel.local("highest", 1, f"float32x{lanes}", fill=LOWEST)
    exponents = kernel.local("exponents", 1, f"int32x{lanes}", fill=0)
    with part.each() as (start, _, inside):
        x = kernel.let("x", load(start))
        highest[0] = maximum(highest[0], select(inside, x, number(LOWEST, f"float32x{lanes}")))
        bits = reinterpret(x, f"int32x{lanes}") & number(INFINITY, f"int32x{lanes}")
        exponents[0] = maximum(exponents[0], select(inside, bits, number(0, f"int32x{lanes}")))
    sound = fold_lanes(exponents[0], maximum) < INFINITY
    largest[0] = select(sound, largest_of_lanes(highest[0]), number(-LOWEST, "float32"))
    sums = kernel.local("sums", 1, f"float32x{lanes}", fill=0)
    with part.each() as (start, _, inside):
        weight = exp(load(start) - splat(largest[0], lanes))
        sums[0] = sums[0] + select(inside, weight, number(0, f"float32x{lanes}"))
    total[0] = sum_of_lanes(sums[0])


def merge_chunks(
    kernel: KernelBuilder, partials: Array, row: Scalar, chunks: int, largest: Array, total: Array
) -> None:
    """Combine the partials of `sum_chunk` (R, chunks, 2 or more) into the row's largest logit and sum of exp."""
    largest[0] = number(LOWEST, "float32")
    with kernel.loop("chunk", chunks) as chunk:
        largest[0] = maximum(largest[0], partials[row, chunk, 0])
    total[0] = number(0, "float32")
    with kernel.loop("chunk", chunks) as chunk:
        total[0] = total[0] + partials[row, chunk, 1] * exp(partials[row, chunk, 0] - largest[0])


def first_largest(
    kernel: KernelBuilder, isa: Isa, part: Columns, load: Callable[[Scalar], Scalar], value: Array, first_column: Array
) -> None:
    """Set ``value`` to the largest and ``first_column`` to the first column that has it."""
    lanes = isa.lanes
    highest = kernel.local("highest", 1, f"float32x{lanes}", fill=LOWEST)
    with part.each() as (start, _, inside):
        highest[0] = maximum(highest[0], select(inside, load(start), number(LOWEST, f"float32x{lanes}")))
    value[0] = largest_of_lanes(highest[0])
    first_columns = kernel.local("first_columns", 1, f"int32x{lanes}", fill=2**31 - 1)
    with part.each() as (start, columns, inside):
        equal = inside & (load(start) == splat(value[0], lanes))
        first_columns[0] = minimum(first_columns[0], select(equal, columns, number(2**31 - 1, f"int32x{lanes}")))
    first_column[0] = fold_lanes(first_columns[0], minimum)


def key_of(x: Scalar, dtype: str) -> Scalar:
    """Map the bits of floats to unsigned integers with the same order."""
    bits = reinterpret(x, dtype)
    top = number(0x80000000, dtype)
    return select(bits >= top, ~bits, bits | top)
