"""Arithmetic that several GPU kernels share, on float32 scalars: the activations of gates, soft-caps, and the factor
of an RMS norm.

`ir/ops/elementwise.py` defines them. Here no intermediate value overflows, because WGSL may treat an infinity as any
number. Name an argument that is used more than once (`KernelBuilder.let`), or its expression is repeated each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from .builder import (
    KernelBuilder,
    Scalar,
    cast,
    exp,
    extern,
    log,
    magnitude,
    maximum,
    minimum,
    number,
    reinterpret,
    rsqrt,
    select,
    truncated_quotient,
)
from .fold import Maths

# exp of this is finite, and a quotient by 1 + exp of it equals its limit in float32.
LARGEST_EXPONENT = 88.0
# The square of this is far from overflow.
LARGEST_SQUARED = 1e18
# Beyond this many standard deviations the tail of the normal distribution is 0 in float32.
LARGEST_DEVIATION = 13.0
# erfc(x) = t (a1 + t (a2 + ..)) exp(-x^2) with t = 1 / (1 + P x), for x >= 0, within 1.5e-7. Abramowitz & Stegun 1964,
# 7.1.26.
ERFC_P = 0.3275911
ERFC_TERMS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def soft_capped(kernel: KernelBuilder, cap: float, x: Scalar) -> Scalar:
    """cap * tanh(x / cap), float32."""
    ratio = kernel.let("ratio", x * number(1 / cap, "float32"))
    # tanh |x| = (1 - exp(-2|x|)) / (1 + exp(-2|x|)), which cannot overflow. Shading languages' own tanh may, for large
    # x.
    falling = kernel.let("falling", exp(magnitude(ratio) * number(-2, "float32")))
    one = number(1, "float32")
    size = kernel.let("size", number(cap, "float32") * (one - falling) / (one + falling))
    return select(ratio < 0, -size, size)


def silu(x: Scalar) -> Scalar:
    return x / one_plus_exp(-x)


def gelu(x: Scalar) -> Scalar:
    """max(x, 0) - |x| / 2 * erfc(|x| / sqrt(2)): the same as x / 2 * (1 + erf(x / sqrt(2))), without its
    cancellation.
    """
    size = minimum(magnitude(x), float32(LARGEST_DEVIATION))
    t = float32(1) / (float32(1) + float32(ERFC_P / math.sqrt(2)) * size)
    series = float32(ERFC_TERMS[-1])
    for term in reversed(ERFC_TERMS[:-1]):
        series = series * t + float32(term)
    return maximum(x, float32(0)) - float32(0.5) * size * t * series * exp(float32(-0.5) * size * size)


def gelu_tanh(x: Scalar) -> Scalar:
    """x / (1 + exp(-2 u)): the same as x / 2 * (1 + tanh(u))."""
    # Beyond this, the quotient is x or 0, and the cube is far from overflow.
    limited = maximum(minimum(x, float32(LARGEST_DEVIATION)), float32(-LARGEST_DEVIATION))
    u = float32(math.sqrt(2 / math.pi)) * (limited + float32(0.044715) * limited * limited * limited)
    return x / one_plus_exp(float32(-2) * u)


def relu2(x: Scalar) -> Scalar:
    return maximum(x, float32(0)) * maximum(x, float32(0))


def relu(x: Scalar) -> Scalar:
    return maximum(x, float32(0))


def tanh(x: Scalar) -> Scalar:
    """2 / (1 + exp(-2 x)) - 1, which cannot overflow."""
    return float32(2) / one_plus_exp(float32(-2) * x) - float32(1)


def asinh(x: Scalar) -> Scalar:
    """The sign of x times log(|x| + sqrt(x^2 + 1)). Beyond LARGEST_SQUARED it stays at its value there."""
    size = minimum(magnitude(x), float32(LARGEST_SQUARED))
    value = log(size + float32(1) / rsqrt(size * size + float32(1)))
    return select(x < float32(0), -value, value)


def sigmoid(x: Scalar) -> Scalar:
    return float32(1) / one_plus_exp(-x)


def one_plus_exp(x: Scalar) -> Scalar:
    return float32(1) + exp(minimum(x, float32(LARGEST_EXPONENT)))


def rms_factor(sum_of_squares: Scalar, width: int, eps: float) -> Scalar:
    """The factor that scales ``width`` elements to unit root mean square."""
    return rsqrt(sum_of_squares * float32(1 / width) + float32(eps))


def position_factor(scale: tuple[float, int], position: Scalar) -> Scalar:
    """The factor of a rotated query; see `op.POSITION_SCALE`."""
    beta, length = scale
    return float32(1) + float32(beta) * log(float32(1) + cast(truncated_quotient(position, length), "float32"))


def float32(value: float) -> Scalar:
    return number(value, "float32")


ACTIVATION_FUNCTIONS: Mapping[str, Callable[[Scalar], Scalar]] = MappingProxyType(
    {
        "silu": silu,
        "gelu": gelu,
        "gelu_tanh": gelu_tanh,
        "relu2": relu2,
        "relu": relu,
        "tanh": tanh,
        "asinh": asinh,
        "sigmoid": sigmoid,
        "none": lambda x: x,
    }
)


def fake_quantized(kernel: KernelBuilder, x: Scalar, step: float) -> Scalar:
    """A float32 rounded to multiples of ``step``, ties to even, and clipped to -128 to 127 times it; NaN stays NaN."""
    each = kernel.let("each", x)
    code = extern("float32", "round", each / number(step, "float32"))
    limited = minimum(maximum(code, number(-128, "float32")), number(127, "float32"))
    is_nan = (reinterpret(each, "uint32") & number(0x7FFFFFFF, "uint32")) > number(0x7F800000, "uint32")
    return select(is_nan, each, limited * number(step, "float32"))


MATHS = Maths(ACTIVATION_FUNCTIONS, exp, fake_quantized, soft_capped)
