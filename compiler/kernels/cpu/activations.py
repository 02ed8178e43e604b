"""The activation functions of gates, on float32 scalars and vectors: those of `ir/ops/elementwise.py`, one definition
for all kernels.

A value that is NaN stays NaN. Pass a named value (`KernelBuilder.let`), because each function uses its argument several
times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from ..builder import KernelBuilder, Scalar, magnitude, minimum, select
from ..fold import Maths
from ..maths import LARGEST_SQUARED
from ..vectors import like
from .math import erf, exp, fake_quantized, falling_exp, log, square_root, tanh

# The largest float32.
LARGEST = 3.4028234e38


def silu(x: Scalar) -> Scalar:
    return x / (like(x, 1) + exp(-x))


def sigmoid(x: Scalar) -> Scalar:
    return like(x, 1) / (like(x, 1) + exp(-x))


def asinh(x: Scalar) -> Scalar:
    """The sign of x times log(|x| + sqrt(x^2 + 1)), or log(|x|) + log(2) for large ones."""
    size = select(x < like(x, 0), -x, x)
    limited = minimum(size, like(x, LARGEST_SQUARED))
    small = log(limited + square_root(limited * limited + like(x, 1)))
    value = select(size < like(x, LARGEST_SQUARED), small, log(size) + like(x, math.log(2)))
    # `minimum` would turn NaN into a number.
    return select(size <= like(x, LARGEST), select(x < like(x, 0), -value, value), x)


def gelu(x: Scalar) -> Scalar:
    return like(x, 0.5) * x * (like(x, 1) + erf(x * like(x, math.sqrt(0.5))))


def gelu_tanh(x: Scalar) -> Scalar:
    """x / (1 + exp(-2 u)), the same as x / 2 * (1 + tanh(u)), with a power that never overflows: for a negative x, both
    parts of the quotient are multiplied by exp(2 u).
    """
    u = like(x, math.sqrt(2 / math.pi)) * (x + like(x, 0.044715) * x * x * x)
    power = falling_exp(like(x, -2) * magnitude(u))
    return select(x < like(x, 0), x * power, x) / (like(x, 1) + power)


def relu(x: Scalar) -> Scalar:
    # `maximum` would turn NaN into 0.
    return select(x < like(x, 0), like(x, 0), x)


def relu2(x: Scalar) -> Scalar:
    return relu(x) * relu(x)


ACTIVATIONS: Mapping[str, Callable[[Scalar], Scalar]] = MappingProxyType(
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


def soft_capped(kernel: KernelBuilder, cap: float, x: Scalar) -> Scalar:  # noqa: ARG001
    """cap * tanh(x / cap)."""
    return like(x, cap) * tanh(x / like(x, cap))


MATHS = Maths(ACTIVATIONS, exp, fake_quantized, soft_capped)
