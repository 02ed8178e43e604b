"""E4M3: 8-bit floats with a sign, 4 bits of exponent and 3 of mantissa, without infinities; the largest number is 448.
OCP 8-bit Floating Point Specification 1.0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]


def _values() -> FloatArray:
    codes = np.arange(256)
    exponents, mantissas = codes >> 3 & 15, codes & 7
    sizes = np.where(
        exponents == 0, np.ldexp(mantissas.astype(np.float32), -9), np.ldexp(mantissas + np.float32(8), exponents - 10)
    )
    sizes[(codes & 127) == 127] = np.nan
    return np.where(codes < 128, sizes, -sizes).astype(np.float32)


# The number of each code.
VALUES = _values()
# Between each positive number and the next one.
_MIDDLES = (VALUES[:126] + VALUES[1:127]) / 2


def encode(numbers: FloatArray) -> npt.NDArray[np.uint8]:
    """The codes of the nearest numbers, ties to even, of larger ones that of 448; as CUDA's cvt.rn.satfinite.e4m3x2."""
    sizes = np.abs(numbers)
    below, above = (np.searchsorted(_MIDDLES, sizes, side) for side in ("left", "right"))
    # They differ for a tie alone.
    codes = np.where(below % 2 == 0, below, above)
    signed: npt.NDArray[np.uint8] = (codes | np.signbit(numbers).astype(np.int64) << 7).astype(np.uint8)
    return signed
