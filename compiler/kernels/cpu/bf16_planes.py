"""Floats as sums of bfloat16: each plane has the next 8 bits of the significands, and the last one is rounded."""

from __future__ import annotations

from ..builder import KernelBuilder, Scalar, cast, number, reinterpret, select
from ..vectors import floats, lanes_of, with_lanes

# The bits of a float32 that are a bfloat16, half of the lowest of them, the magnitude, and infinity's.
HIGH, HALF, MAGNITUDE, INFINITY = 0xFFFF0000, 0x8000, 0x7FFFFFFF, 0x7F800000


def bits_of(kernel: KernelBuilder, x: Scalar, planes: int) -> list[Scalar]:
    """The bits of ``planes`` bfloat16 as uint32, each in the upper half, whose sum is near a vector of float32. If x is
    not finite, neither is the sum.
    """
    lanes = lanes_of(x)
    words, found = with_lanes("uint32", lanes), []
    for _ in range(planes - 1):
        high = kernel.let("plane", reinterpret(x, words) & number(HIGH, words))
        found.append(high)
        x = kernel.let("rest", x - reinterpret(high, floats(lanes)))
    bits = kernel.let("bits", reinterpret(x, words))
    # Rounded, a NaN with the highest bits would become zero.
    is_finite = (bits & number(MAGNITUDE, words)) < number(INFINITY, words)
    rounded = select(is_finite, bits + number(HALF, words), bits)
    return [*found, kernel.let("plane", rounded & number(HIGH, words))]


def words_of(kernel: KernelBuilder, low: Scalar, high: Scalar, planes: int) -> list[Scalar]:
    """The planes of two vectors, as words of both: ``low`` in their lower halves."""
    words = with_lanes("uint32", lanes_of(low))
    pairs = zip(bits_of(kernel, low, planes), bits_of(kernel, high, planes), strict=True)
    return [one >> number(16, words) | other for one, other in pairs]


def halves_of(kernel: KernelBuilder, x: Scalar, planes: int) -> list[Scalar]:
    """The planes of a vector, as uint16."""
    lanes = lanes_of(x)
    words = with_lanes("uint32", lanes)
    return [cast(each >> number(16, words), with_lanes("uint16", lanes)) for each in bits_of(kernel, x, planes)]
