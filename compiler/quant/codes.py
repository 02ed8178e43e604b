"""Integers that a checkpoint stores, with their own scales: w = (code - 2^(bits - 1)) * scale, of 2, 4 or 8 bits.

A scale belongs to a whole row (an output channel), or to ``group`` columns of it. Nothing is rounded: the planes hold
the checkpoint's integers and its float32 scales in the order that kernels read. Planes:

    q  (N, K * bits / 32) uint32, K padded to whole groups of 32 with the code of zero. Byte b of a word holds element
       b in its lowest bits, element b + 4 in the next ones, and so on, so that ``u >> (bits * i)`` and a mask give four
       consecutive elements. 4 and 8 bits are in the order of `q4.py` and `q8.py`.
    s  (N, 1) float32, or (N, K / group).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import QuantizationError
from .base import GROUP, GROUPS, ROW, Array, FloatArray, PlaneLayout, padded_columns, require_finite

WIDTHS = (2, 4, 8)
_NAME = re.compile(r"q([248])(?:c|g([1-9][0-9]{0,8}))")


@dataclass(frozen=True, slots=True)
class Codes:
    """``group``: the columns that share a scale, a multiple of 32, or ROW."""

    bits: int
    group: int = ROW

    def __post_init__(self) -> None:
        if self.bits not in WIDTHS or self.group % GROUP:
            raise QuantizationError(
                f"codes of {self.bits} bits with a scale for {self.group} columns are not supported; supported: "
                f"{', '.join(map(str, WIDTHS))} bits with a scale for a row, or for a multiple of {GROUP} columns"
            )

    @property
    def name(self) -> str:
        return f"q{self.bits}c" if self.group == ROW else f"q{self.bits}g{self.group}"

    @property
    def kind(self) -> str:
        return f"q{self.bits}"

    @property
    def zero(self) -> int:
        """The code that means 0."""
        return 1 << (self.bits - 1)

    def planes(self, columns: int) -> tuple[PlaneLayout, ...]:
        scales = 1 if self.group == ROW else -(-columns // self.group)
        return (
            PlaneLayout("q", "uint32", padded_columns(columns) * self.bits // 32),
            PlaneLayout("s", "float32", scales),
        )

    def store(self, integers: npt.NDArray[np.int8], scales: FloatArray) -> dict[str, Array]:
        """Planes of integers (N, K), -2^(bits - 1) to 2^(bits - 1) - 1, and of their scales (N, 1 or K / group).

        Raises QuantizationError for a scale that is not finite.
        """
        require_finite(scales)
        rows, columns = integers.shape
        codes = np.full((rows, padded_columns(columns)), self.zero, np.uint8)
        # In 8 bits, -128 wraps to 0 and 127 to 255.
        codes[:, :columns] = integers.view(np.uint8) + np.uint8(self.zero)
        quads = codes.reshape(rows, -1, 8 // self.bits, 4)
        packed = quads[:, :, 0].copy()
        for place in range(1, 8 // self.bits):
            packed |= quads[:, :, place] << np.uint8(place * self.bits)
        return {"q": packed.reshape(rows, -1).view(np.uint32), "s": np.ascontiguousarray(scales, np.float32)}

    def codes(self, planes: Mapping[str, Array]) -> npt.NDArray[np.uint8]:
        """The codes (N, K) of planes, with the padding's."""
        packed = np.ascontiguousarray(planes["q"]).view(np.uint8)
        rows = len(packed)
        packed = packed.reshape(rows, -1, 1, 4)
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)[:, None]
        codes: npt.NDArray[np.uint8] = (packed >> shifts & np.uint8((1 << self.bits) - 1)).reshape(rows, -1)
        return codes

    def unpack(self, planes: Mapping[str, Array], columns: int) -> FloatArray:
        integers = self.codes(planes)[:, :columns].astype(np.float32) - np.float32(self.zero)
        return integers * self.column_scales(planes, columns)

    def column_scales(self, planes: Mapping[str, Array], columns: int) -> FloatArray:
        """The scale of each column, (N, 1) or (N, columns)."""
        scales: FloatArray = planes["s"].astype(np.float32)
        return scales if self.group == ROW else np.repeat(scales, self.group, axis=1)[:, :columns]


def in_order(words: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint8]:
    """Words (N, W) of plane ``q`` as bytes (N, 4 W) in which a lower element has lower bits."""
    parts = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1, 1, 4)
    elements = parts >> np.arange(0, 8, bits, dtype=np.uint8)[:, None] & np.uint8((1 << bits) - 1)
    elements = elements.reshape(len(words), -1, 8 // bits)
    ordered = elements[..., 0].copy()
    for place in range(1, 8 // bits):
        ordered |= elements[..., place] << np.uint8(place * bits)
    return ordered


def block_of(columns: int) -> int:
    """The largest block of columns, of those that other frameworks' kernels take, of which a row is a whole number; the
    smallest if there is none.
    """
    return next((block for block in reversed(GROUPS) if columns % block == 0), GROUP)


def codes_by_name(name: str) -> Codes | None:
    """The format that a bundle's manifest names, such as "q2c" (a scale for each row) or "q4g256"."""
    match = _NAME.fullmatch(name)
    if match is None or (match[2] and int(match[2]) % GROUP):
        return None
    return Codes(int(match[1]), int(match[2] or ROW))
