"""Floats as sums of bfloat16: each plane has the next 8 bits of the significands, and the last one is rounded."""

from __future__ import annotations

from ..builder import KernelBuilder, Scalar, cast, number, reinterpret
from .builder import floats, of
from .math import lanes_of

# The bits of a float32 that are a bfloat16, and half of the lowest of them.
HIGH, HALF = 0xFFFF0000, 0x8000


def bits_of(kernel: KernelBuilder, x: Scalar, planes: int) -> list[Scalar]:
    """A vector of float32 as the bits of ``planes`` float32 that are bfloat16, uint32 each; their sum is x, exactly if
    there are three. If x is not finite, neither is the sum.
    """
    lanes = lanes_of(x)
    words, found = of("uint32", lanes), []
    for plane in range(planes):
        bits = reinterpret(x, words)
        last = plane == planes - 1
        high = kernel.let("plane", (bits + number(HALF, words) if last and planes < 3 else bits) & number(HIGH, words))
        found.append(high)
        if not last:
            x = kernel.let("rest", x - reinterpret(high, floats(lanes)))
    return found


def words_of(kernel: KernelBuilder, low: Scalar, high: Scalar, planes: int) -> list[Scalar]:
    """The planes of two vectors, as words of both: ``low`` in their lower halves."""
    words = of("uint32", lanes_of(low))
    pairs = zip(bits_of(kernel, low, planes), bits_of(kernel, high, planes), strict=True)
    return [one >> number(16, words) | other for one, other in pairs]


def halves_of(kernel: KernelBuilder, x: Scalar, planes: int) -> list[Scalar]:
    """The planes of a vector, as uint16."""
    lanes = lanes_of(x)
    words = of("uint32", lanes)
    return [cast(each >> number(16, words), of("uint16", lanes)) for each in bits_of(kernel, x, planes)]
