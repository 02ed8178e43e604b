"""Arithmetic on float32 scalars and vectors that is the same on every CPU and in every loop: fused products, exp and log as polynomials.

LLVM neither reorders float sums by itself nor makes vectors of calls to exp; so these say exactly what is computed.
"""

from __future__ import annotations

import math

from tvm import tirx

from ..builder import Scalar, cast, lane_of, maximum, minimum, number, reinterpret, select

# Below this exp is taken to be 0; it is the logarithm of the smallest normal float32.
LOWEST_EXPONENT = -87.3
HIGHEST_EXPONENT = 88.7
# ln 2 in two parts, the first with so few bits that its product with an exponent is exact.
LN2_HIGH = 0.693359375
LN2_LOW = math.log(2) - LN2_HIGH
# Taylor's terms of exp up to here are within 1e-8 on [-ln 2 / 2, ln 2 / 2].
EXP_TERMS = 7
# Of 2 atanh(s), s at most 0.172: the rest is below 1e-9.
LOG_TERMS = 5


def fused(a: Scalar, b: Scalar, c: Scalar) -> Scalar:
    """a * b + c, rounded once."""
    return tirx.call_llvm_pure_intrin(str(a.ty), "llvm.fma", a, b, c)


def intrinsic(dtype: str, name: str, *arguments: Scalar) -> Scalar:
    """A call of LLVM's "llvm." and ``name``, without effects, whose result is of the given dtype."""
    return tirx.call_llvm_pure_intrin(dtype, f"llvm.{name}", *arguments)


def lanes_of(x: Scalar) -> int:
    return int(str(x.ty).partition("x")[2] or 1)


def like(x: Scalar, value: float) -> Scalar:
    """A constant with as many lanes as ``x``."""
    return number(value, str(x.ty))


def exp(x: Scalar) -> Scalar:
    """e to the x, within 2e-7 of it; 0 below LOWEST_EXPONENT, and e^HIGHEST_EXPONENT above that."""
    integers = integers_like(x)
    limited = minimum(maximum(x, like(x, LOWEST_EXPONENT)), like(x, HIGHEST_EXPONENT))
    turns = rounded(limited * like(x, 1 / math.log(2)))
    rest = fused(turns, like(x, -LN2_LOW), fused(turns, like(x, -LN2_HIGH), limited))
    result = like(x, 1 / math.factorial(EXP_TERMS))
    for term in reversed(range(EXP_TERMS)):
        result = fused(result, rest, like(x, 1 / math.factorial(term)))
    power = reinterpret((cast(turns, integers) + number(127, integers)) << number(23, integers), str(x.ty))
    return select(x < like(x, LOWEST_EXPONENT), like(x, 0), result * power)


def log(x: Scalar) -> Scalar:
    """The natural logarithm of a normal positive number, within 2e-7 of its magnitude or absolutely."""
    integers = integers_like(x)
    bits = reinterpret(x, integers)
    # Between sqrt(1/2) and sqrt(2), times a power of two.
    exponent = (bits - number(0x3F3504F3, integers)) >> number(23, integers)
    mantissa = reinterpret(bits - (exponent << number(23, integers)), str(x.ty))
    s = (mantissa - like(x, 1)) / (mantissa + like(x, 1))
    square = s * s
    series = like(x, 2 / (2 * LOG_TERMS + 1))
    for term in reversed(range(LOG_TERMS)):
        series = fused(series, square, like(x, 2 / (2 * term + 1)))
    powers = cast(exponent, str(x.ty))
    return fused(powers, like(x, LN2_HIGH), fused(powers, like(x, LN2_LOW), s * series))


def integers_like(x: Scalar) -> str:
    return str(x.ty).replace("float", "int")


def rounded(x: Scalar) -> Scalar:
    """To the nearest whole number, ties to even."""
    return tirx.call_llvm_pure_intrin(str(x.ty), "llvm.rint", x)


def square_root(x: Scalar) -> Scalar:
    return tirx.call_llvm_pure_intrin(str(x.ty), "llvm.sqrt", x)


def sum_of_lanes(x: Scalar) -> Scalar:
    """The sum of a vector's lanes, halves onto halves."""
    return fold_lanes(x, lambda a, b: a + b)


def largest_of_lanes(x: Scalar) -> Scalar:
    return fold_lanes(x, maximum)


def fold_lanes(x: Scalar, combine: object) -> Scalar:
    lanes = lanes_of(x)
    if lanes == 1:
        return x
    if lanes == 2:
        return combine(lane_of(x, 0), lane_of(x, 1))  # type: ignore[operator]
    half = lanes // 2
    low, high = take_lanes(x, range(half)), take_lanes(x, range(half, lanes))
    return fold_lanes(combine(low, high), combine)  # type: ignore[operator]


def take_lanes(x: Scalar, lanes: range | list[int]) -> Scalar:
    """A vector of some of the lanes of one."""
    return tirx.Shuffle([x], [tirx.const(lane, "int32") for lane in lanes])


def join(*vectors: Scalar, lanes: list[int]) -> Scalar:
    """A vector of lanes of several of the same length, counted through."""
    return tirx.Shuffle(list(vectors), [tirx.const(lane, "int32") for lane in lanes])
