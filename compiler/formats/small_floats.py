"""The values of floats of 4 bits, and of powers of two (OCP Microscaling Formats 1.0, sections 5.3 and 5.4)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..quant.base import FloatArray

# The values of FP4 (E2M1), twice as large, as codes of 5 bits.
FP4_CODES = np.array([16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4], np.uint8)


def powers_of_two(exponents: npt.NDArray[np.uint8]) -> FloatArray:
    """The values of bytes of E8M0: 2^(e - 127), and NaN for 255."""
    powers = np.ldexp(np.float32(1), np.minimum(exponents, 254).astype(np.int32) - 127)
    return np.where(exponents == 255, np.float32(np.nan), powers).astype(np.float32)
