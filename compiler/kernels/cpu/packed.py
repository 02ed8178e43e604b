"""Reads single rows of a packed matrix in tiles of 16 rows, one group of 32 weights at a time. See `quant/` for formats
and layout.
"""

from __future__ import annotations

from ...quant.base import GROUP, ROW
from ...quant.layout import TILE_ROWS
from ..builder import Array, KernelBuilder, Scalar, cast, number, reinterpret, splat, vector
from ..packed import WeightFormat
from .math import join, take_lanes


class PackedRows:
    """A packed (rows, columns) matrix as arguments of a kernel: its planes, named after ``role``."""

    def __init__(
        self, kernel: KernelBuilder, role: str, rows: int, columns: int, fmt: WeightFormat, lanes: int
    ) -> None:
        self._kernel, self._format, self._lanes = kernel, fmt, lanes
        self.groups = groups = -(-columns // GROUP)
        tiles = -(-rows // TILE_ROWS)
        if fmt.bits is not None:
            self._codes = kernel.buffer(f"{role}.q", (tiles, groups * fmt.bits, TILE_ROWS), "uint32")
        else:
            dtype = "float16" if fmt.kind == "f16" else "float32"
            self._codes = kernel.buffer(f"{role}.w", (tiles, groups * GROUP, TILE_ROWS), dtype)
        self._scales = (
            kernel.buffer(f"{role}.s", (tiles, fmt.scales_of(columns), TILE_ROWS), fmt.scale_dtype)
            if fmt.scale_dtype
            else None
        )

    def group(self, row: Scalar, group: Scalar) -> list[Scalar]:
        """The 32 weights of a group as float32 vectors."""
        lanes, starts = self._lanes, range(0, GROUP, self._lanes)
        if self._scales is None:
            return [
                cast(self._elements(self._codes, row, group * GROUP + start, lanes), f"float32x{lanes}")
                for start in starts
            ]
        of_group = self._format.group
        place = 0 if of_group == ROW else group // (of_group // GROUP)
        scale = splat(cast(self._elements(self._scales, row, place, 1), "float32"), lanes)
        zero = number(self._format.zero, f"float32x{lanes}")
        if self._format.kind == "q8":
            codes = reinterpret(self._elements(self._codes, row, group * 8, 8), "uint8x32")
        elif self._format.kind == "q4":
            # Byte 4w + b of a group holds element 8w + b in its low nibble and element 8w + b + 4 in its high one.
            packed = self._kernel.let("packed", reinterpret(self._elements(self._codes, row, group * 4, 4), "uint8x16"))
            low, high = packed & number(15, "uint8x16"), packed >> number(4, "uint8x16")
            codes = join(low, high, lanes=[4 * (e // 8) + e % 4 + 16 * (e % 8 // 4) for e in range(GROUP)])
        else:
            # Byte 4w + b of a group holds elements 16w + b, 16w + b + 4, 16w + b + 8 and 16w + b + 12.
            packed = self._kernel.let("packed", reinterpret(self._elements(self._codes, row, group * 2, 2), "uint8x8"))
            fields = [packed >> number(bits, "uint8x8") & number(3, "uint8x8") for bits in (0, 2, 4, 6)]
            pairs = [self._kernel.let("pair", join(*fields[i : i + 2], lanes=list(range(16)))) for i in (0, 2)]
            codes = join(*pairs, lanes=[8 * (e % 16 // 4) + 4 * (e // 16) + e % 4 for e in range(GROUP)])
        whole = self._kernel.let("codes", codes)
        parts = (take_lanes(whole, range(start, start + lanes)) for start in starts)
        return [(cast(cast(part, f"int32x{lanes}"), f"float32x{lanes}") - zero) * scale for part in parts]

    def _elements(self, plane: Array, row: Scalar, first: Scalar, count: int) -> Scalar:
        """A row's elements of a plane, which are not contiguous."""
        found = [plane[row // TILE_ROWS, first + i, row % TILE_ROWS] for i in range(count)]
        return vector(*found) if count > 1 else found[0]
