"""Arithmetic on float32 scalars and vectors that gives the same bits on every CPU and in every loop.

LLVM does not reorder float sums on its own, and it does not vectorize calls to exp. So exp, log, tanh and erf are
polynomials here.
"""

from __future__ import annotations

import math

from ..builder import (
    KernelBuilder,
    Scalar,
    cast,
    magnitude,
    maximum,
    minimum,
    number,
    reinterpret,
    select,
    truncated_quotient,
)
from ..tir import tirx
from ..vectors import like

# Below this value, exp is 0. It is the logarithm of the smallest normal float32.
LOWEST_EXPONENT = -87.3
HIGHEST_EXPONENT = 88.7
# ln 2 in two parts. The first one has few bits, so its product with an exponent is exact.
LN2_HIGH = 0.693359375
LN2_LOW = math.log(2) - LN2_HIGH
# Up to this degree, the Taylor series of exp is within 1e-8 on [-ln 2 / 2, ln 2 / 2].
EXP_TERMS = 7
# The same as a polynomial of degree 6 with a relative error of 2e-9, lowest power first. A minimax fit.
EXP_FIT = (
    1.0,
    1.0000000364310255,
    0.49999992056095416,
    0.1666641968045607,
    0.04166822868347236,
    0.008374857073872342,
    0.0013836794008863537,
)
# Adding this to a float32 of small magnitude rounds it to an integer, which is then in the lowest bits.
ROUNDING = 1.5 * 2**23
# The degree of 2 atanh(s) for s of at most 0.172; the remainder is below 1e-9.
LOG_TERMS = 5
# tanh(x) / x - 1 as a polynomial of x^2 without a constant term, for x below TANH_SMALL; highest power first. Cephes'
# tanhf.
TANH_SMALL = 0.625
TANH_TERMS = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
# erf(x) / x - 1 as a polynomial of x^2 up to ERF_SMALL, and log(1 - erf(x)) / x + 1 as one of x above it; highest power
# first. Minimax fits of N. Juffa's erff.
ERF_SMALL = 0.927734375
ERF_SMALL_TERMS = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
ERF_LARGE_TERMS = (
    -1.72853470e-5,
    3.83197126e-4,
    -3.88396438e-3,
    2.42546219e-2,
    -1.06777877e-1,
    -6.34846687e-1,
    -1.28717512e-1,
)


def fused(a: Scalar, b: Scalar, c: Scalar) -> Scalar:
    """a * b + c, rounded once."""
    return tirx.call_llvm_pure_intrin(str(a.ty), "llvm.fma", a, b, c)


def intrinsic(dtype: str, name: str, *arguments: Scalar) -> Scalar:
    """A call of LLVM's intrinsic "llvm." + ``name`` without side effects, with a result of the given dtype."""
    return tirx.call_llvm_pure_intrin(dtype, f"llvm.{name}", *arguments)


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


def falling_exp(x: Scalar) -> Scalar:
    """e to the x for x of at most 0, within 2e-7 of it; 0 below LOWEST_EXPONENT. It takes fewer instructions than
    `exp`, and those of its polynomial run side by side.
    """
    integers = integers_like(x)
    limited = maximum(x, like(x, LOWEST_EXPONENT))
    shifted = fused(limited, like(x, 1 / math.log(2)), like(x, ROUNDING))
    turns = shifted - like(x, ROUNDING)
    rest = fused(turns, like(x, -LN2_LOW), fused(turns, like(x, -LN2_HIGH), limited))
    square = rest * rest
    pairs = [fused(rest, like(x, EXP_FIT[i + 1]), like(x, EXP_FIT[i])) for i in (0, 2, 4)]
    low, high = fused(pairs[1], square, pairs[0]), fused(square, like(x, EXP_FIT[6]), pairs[2])
    result = fused(high, square * square, low)
    power = reinterpret(
        (reinterpret(shifted, integers) << number(23, integers)) + number(127 << 23, integers), str(x.ty)
    )
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


def position_factor(scale: tuple[float, int], position: Scalar) -> Scalar:
    """The factor of a rotated query; see `op.POSITION_SCALE`."""
    beta, length = scale
    one = number(1, "float32")
    periods = cast(truncated_quotient(position, length), "float32")
    return one + number(beta, "float32") * log(one + periods)


def tanh(x: Scalar) -> Scalar:
    """The hyperbolic tangent, within 2e-7 of its magnitude. It never overflows, and NaN stays NaN."""
    size, square = magnitude(x), x * x
    small = fused(polynomial(square, TANH_TERMS) * square, x, x)
    large = like(x, 1) - like(x, 2) / (exp(size + size) + like(x, 1))
    return select(size >= like(x, TANH_SMALL), with_sign_of(x, large), small)


def erf(x: Scalar) -> Scalar:
    """The error function, within 1e-7 of its magnitude. It never overflows, and NaN stays NaN."""
    size = magnitude(x)
    small = fused(polynomial(x * x, ERF_SMALL_TERMS), x, x)
    large = like(x, 1) - falling_exp(fused(polynomial(size, ERF_LARGE_TERMS), size, -size))
    return select(size >= like(x, ERF_SMALL), with_sign_of(x, large), small)


def polynomial(x: Scalar, terms: tuple[float, ...]) -> Scalar:
    """The sum of terms[i] * x^(len(terms) - 1 - i), by Horner's rule."""
    result = like(x, terms[0])
    for term in terms[1:]:
        result = fused(result, x, like(x, term))
    return result


def with_sign_of(x: Scalar, size: Scalar) -> Scalar:
    """``size``, which is not negative, with the sign of ``x``."""
    return select(x < like(x, 0), -size, size)


def integers_like(x: Scalar) -> str:
    return str(x.ty).replace("float", "int")


def rounded(x: Scalar) -> Scalar:
    """Round to the nearest integer, ties to even."""
    return tirx.call_llvm_pure_intrin(str(x.ty), "llvm.rint", x)


def square_root(x: Scalar) -> Scalar:
    return tirx.call_llvm_pure_intrin(str(x.ty), "llvm.sqrt", x)


def fake_quantized(kernel: KernelBuilder, x: Scalar, step: float) -> Scalar:
    """x rounded to multiples of ``step``, ties to even, and clipped to -128 to 127 times it; NaN stays NaN."""
    integers = str(x.ty).replace("float32", "uint32")
    each = kernel.let("each", x)
    result = kernel.let("result", codes_of(each, step) * like(each, step))
    is_nan = (reinterpret(each, integers) & number(0x7FFFFFFF, integers)) > number(0x7F800000, integers)
    return select(is_nan, each, result)


def codes_of(x: Scalar, step: float) -> Scalar:
    """The multiples of ``step`` nearest to x, -128 to 127, as floats. Limited first, because only numbers within 2^22
    are rounded exactly.
    """
    return rounded(minimum(maximum(x / like(x, step), like(x, -128)), like(x, 127)))
