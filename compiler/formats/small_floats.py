"""The values of floats of 4 and 8 bits (OCP Microscaling Formats 1.0, sections 5.3 and 5.4)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..quant.base import FloatArray


def _e4m3_values() -> FloatArray:
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    magnitude = np.ldexp(np.where(exponent == 0, mantissa, mantissa + 8), np.maximum(exponent, 1) - 10)
    magnitude[codes & 127 == 127] = np.nan
    values: FloatArray = np.where(codes < 128, magnitude, -magnitude).astype(np.float32)
    return values


# The value of each byte: a sign, 4 bits of exponent and 3 of mantissa, without infinities.
E4M3_VALUES = _e4m3_values()
# The values of FP4 (E2M1), twice as large, as codes of 5 bits.
FP4_CODES = np.array([16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4], np.uint8)


def powers_of_two(exponents: npt.NDArray[np.uint8]) -> FloatArray:
    """The values of bytes of E8M0: 2^(e - 127), and NaN for 255."""
    powers = np.ldexp(np.float32(1), np.minimum(exponents, 254).astype(np.int32) - 127)
    return np.where(exponents == 255, np.float32(np.nan), powers).astype(np.float32)
