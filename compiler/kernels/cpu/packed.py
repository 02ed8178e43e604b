"""Reading packed weights in a CPU kernel, a group of 32 weights of a row at a time; see `quant/` for the layouts."""

from __future__ import annotations

from ...quant.base import GROUP
from ..builder import KernelBuilder, Scalar, cast, number, splat
from ..packed import WeightFormat
from .builder import ramp
from .math import join, take_lanes


class PackedRows:
    """A packed (rows, columns) matrix as arguments of a kernel: its planes, named after ``role``."""

    def __init__(self, kernel: KernelBuilder, role: str, rows: int, columns: int, fmt: WeightFormat, lanes: int) -> None:
        self._kernel, self._format, self._lanes = kernel, fmt, lanes
        self.groups = groups = -(-columns // GROUP)
        if fmt.kind in ("q4", "q8"):
            self._codes = kernel.buffer(f"{role}.q", (rows, groups * (16 if fmt.kind == "q4" else 32)), "uint8")
        else:
            self._codes = kernel.buffer(f"{role}.w", (rows, groups * GROUP), "float16" if fmt.kind == "f16" else "float32")
        self._scales = kernel.buffer(f"{role}.s", (rows, groups), fmt.scale_dtype) if fmt.scale_dtype else None

    def group(self, row: Scalar, group: Scalar) -> list[Scalar]:
        """The 32 weights of a group as float32 vectors."""
        lanes, starts = self._lanes, range(0, GROUP, self._lanes)
        if self._scales is None:
            return [cast(self._codes[row, ramp(group * GROUP + start, lanes)], f"float32x{lanes}") for start in starts]
        scale = splat(self._kernel.let("scale", cast(self._scales[row, group], "float32")), lanes)
        zero = number(self._format.zero, f"float32x{lanes}")
        if self._format.kind == "q8":
            codes = [self._codes[row, ramp(group * GROUP + start, lanes)] for start in starts]
        else:
            codes = self._nibbles(row, group)
        return [(cast(cast(part, f"int32x{lanes}"), f"float32x{lanes}") - zero) * scale for part in codes]

    def _nibbles(self, row: Scalar, group: Scalar) -> list[Scalar]:
        """Byte 4w + b of a group holds element 8w + b in its low nibble and element 8w + b + 4 in its high one."""
        packed = self._kernel.let("packed", self._codes[row, ramp(group * 16, 16)])
        low, high = packed & number(15, "uint8x16"), packed >> number(4, "uint8x16")
        both = self._kernel.let("codes", join(low, high, lanes=[4 * (e // 8) + e % 4 + 16 * (e % 8 // 4) for e in range(GROUP)]))
        return [take_lanes(both, range(start, start + self._lanes)) for start in range(0, GROUP, self._lanes)]
