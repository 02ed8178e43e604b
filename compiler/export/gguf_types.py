"""Chooses the type of GGUF that holds a bundle's matrix exactly, and converts its codes.

    w = (code - 2^(bits - 1)) * s   Q4_0, Q5_0, Q8_0: the same integers, centred in more bits if need be
    w = (code - z) * s              the same types, if the differences fit: integers, too
    w = code * s + b                Q4_1, Q5_1

Scales and biases are float16 there, for blocks of 32; a larger group's are repeated. Codes of FP4 whose scales are
powers of two are MXFP4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..formats.gguf.block_types import Bytes
from ..formats.gguf.pack_blocks import ELEMENTS, mxfp4, pack_blocks
from ..formats.small_floats import FP4_CODES
from ..quant import ROW, Codes, WeightForm
from ..quant.dense import Dense
from .bundle_tensors import BundleTensor, Rows

# The bits of the types without and with a bias, the smallest first.
CENTRED = ((4, "Q4_0"), (5, "Q5_0"), (8, "Q8_0"))
BIASED = ((4, "Q4_1"), (5, "Q5_1"))
# The form of FP4 in blocks.
FP4 = Codes(5, ELEMENTS)
# Rows whose scales are checked at once.
CHECKED_ROWS = 4096

Read = Callable[[Rows], npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Exact:
    """A type that holds a matrix exactly; ``read`` gives the bytes of rows (n, bytes)."""

    kind: str
    read: Read


@dataclass(frozen=True, slots=True)
class Inexact:
    """The reason why no type does."""

    reason: str


def exact_type(tensor: BundleTensor, least_bits: int = 0) -> Exact | Inexact:
    """Reads the scales of a quantized matrix, but not its codes. ``least_bits``: of a type without a bias."""
    form = tensor.form
    if form is None or (isinstance(form, Dense) and form.dtype == "float32"):
        return Exact("F32", tensor.rows)
    if tensor.has_factor:
        return Inexact("its weights are multiplied by a factor that llama.cpp multiplies by, too")
    if isinstance(form, Dense):
        return Exact("F16", halves(tensor))
    codes = as_codes(form)
    if tensor.shape[1] % ELEMENTS:
        return Inexact(f"its rows of {tensor.shape[1]} weights are not whole blocks of {ELEMENTS}")
    if codes.group != ROW and codes.group % ELEMENTS:
        return Inexact(f"its scales are for {codes.group} weights, and those of GGUF's types for {ELEMENTS} or more")
    if codes == FP4 and is_mxfp4(tensor):
        return Exact("MXFP4", lambda rows: mxfp4(codes.codes(tensor.planes(rows)), exponents_of(tensor, rows)))
    ranges = offset_range(tensor, codes)
    if ranges is None:
        return Inexact(f"its scales or offsets are not float16 numbers, as those of GGUF's types of {ELEMENTS} weights")
    low, high = ranges
    if codes.offset == "b":
        found = next((kind for bits, kind in BIASED if codes.bits <= bits), None)
        problem = f"GGUF has no type of {codes.bits} bits with a bias"
    else:
        # The integers that multiply the scale.
        least, most = -high, (1 << codes.bits) - 1 - low
        fitting = (
            kind for bits, kind in CENTRED if -(1 << bits - 1) <= least and most < 1 << bits - 1 and bits >= least_bits
        )
        found = next(fitting, None)
        problem = f"its codes minus their zero points are from {least} to {most}, which do not fit 8 bits"
    return Inexact(problem) if found is None else Exact(found, packed(tensor, codes, found))


def is_mxfp4(tensor: BundleTensor) -> bool:
    """Whether all codes are values of FP4, and all scales powers of two. Reads the codes, too."""
    values = np.isin(np.arange(256), FP4_CODES)
    for start in range(0, tensor.shape[0], CHECKED_ROWS):
        planes = tensor.planes(np.arange(start, min(start + CHECKED_ROWS, tensor.shape[0])))
        if (np.frexp(planes["s"])[0] != 0.5).any() or not values[FP4.codes(planes)].all():
            return False
    return True


def exponents_of(tensor: BundleTensor, rows: Rows) -> Bytes:
    """Those of MXFP4's blocks. A code is twice the value of FP4."""
    return (np.frexp(tensor.planes(rows)["s"])[1] + 127).astype(np.uint8)


def as_codes(form: WeightForm) -> Codes:
    """The same planes as integers with scales; see `BundleTensor.planes`."""
    if isinstance(form, Codes):
        return form.with_float_scales
    assert form.group is not None, form.name
    scale = next(plane.dtype for plane in form.planes(ELEMENTS) if plane.name == "s")
    return Codes(int(form.kind.removeprefix("q")), form.group, "", scale)


def offset_range(tensor: BundleTensor, codes: Codes) -> tuple[int, int] | None:
    """The smallest and the largest zero point; None if a type of GGUF cannot hold all scales and offsets."""
    if codes.offset != "z" and codes.scale == "float16":
        return codes.zero, codes.zero
    low, high = (1 << 30, -(1 << 30)) if codes.offset == "z" else (codes.zero, codes.zero)
    for start in range(0, tensor.shape[0], CHECKED_ROWS):
        planes = tensor.planes(np.arange(start, min(start + CHECKED_ROWS, tensor.shape[0])))
        for name in ("s", "b"):
            if name in planes and not is_half(planes[name]):
                return None
        if codes.offset == "z":
            zeros = planes["z"].astype(np.float32)
            if (zeros != np.rint(zeros)).any():
                return None
            low, high = min(low, int(zeros.min())), max(high, int(zeros.max()))
    return low, high


def is_half(factors: npt.NDArray[np.generic]) -> bool:
    with np.errstate(over="ignore"):
        return bool((factors.astype(np.float16).astype(np.float32) == factors.astype(np.float32)).all())


def packed(tensor: BundleTensor, form: Codes, kind: str) -> Read:
    columns = tensor.shape[1]
    centre = next((1 << bits - 1 for bits, name in CENTRED if name == kind), None)

    def by_block(factors: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """(n, scales) as (n, blocks)."""
        blocks = columns // ELEMENTS
        return np.repeat(factors, blocks if form.group == ROW else form.group // ELEMENTS, axis=1)[:, :blocks]

    def read(rows: Rows) -> npt.NDArray[np.generic]:
        planes = tensor.planes(rows)
        codes: Bytes = form.codes(planes)[:, :columns]
        scales = by_block(planes["s"]).astype(np.float16)
        if centre is None:
            return pack_blocks(kind, codes, scales, by_block(planes["b"]).astype(np.float16))
        if form.offset == "z":
            zeros = np.repeat(by_block(planes["z"]), ELEMENTS, axis=1).astype(np.int16)
            codes = (codes.astype(np.int16) - zeros + centre).astype(np.uint8)
        else:
            codes = codes + np.uint8(centre - form.zero)
        return pack_blocks(kind, codes, scales)

    return read


def halves(tensor: BundleTensor) -> Read:
    """The rows as float16, without an offset or a factor: as they are stored."""

    def read(rows: Rows) -> npt.NDArray[np.generic]:
        return tensor.rows(rows).astype("<f2")

    return read
