"""Reads single rows of a packed matrix in tiles of 16 rows, one group of 32 weights at a time. See `quant/` for formats
and layout.
"""

from __future__ import annotations

from ...quant.base import GROUP, ROW
from ...quant.codes import HALF_GROUP, UNIT_COLUMNS, units_of
from ...quant.layout import TILE_ROWS
from ..builder import Array, KernelBuilder, Scalar, cast, minimum, number, reinterpret
from ..packed import WeightFormat
from ..vectors import join, lanes_of, splat, take_lanes, vector


class PackedRows:
    """A packed (rows, columns) matrix as arguments of a kernel: its planes, named after ``role``."""

    def __init__(
        self, kernel: KernelBuilder, role: str, rows: int, columns: int, fmt: WeightFormat, lanes: int
    ) -> None:
        self._kernel, self._format, self._lanes = kernel, fmt, lanes
        self._num_scales = fmt.scales_of(columns)
        groups = -(-columns // GROUP)
        tiles = -(-rows // TILE_ROWS)
        if fmt.bits is not None:
            self._codes = kernel.buffer(f"{role}.q", (tiles, groups * fmt.low_bits, TILE_ROWS), "uint32")
            if fmt.high_bits:
                self._high = kernel.buffer(f"{role}.h", (tiles, groups * fmt.high_bits, TILE_ROWS), "uint32")
        else:
            dtype = "float16" if fmt.kind == "f16" else "float32"
            self._codes = kernel.buffer(f"{role}.w", (tiles, groups * GROUP, TILE_ROWS), dtype)
        self._scales, self._offsets, self._units = factor_planes(kernel, role, rows, columns, fmt)

    def group(self, row: Scalar, group: Scalar) -> list[Scalar]:
        """The 32 weights of a group as float32 vectors."""
        lanes, starts = self._lanes, range(0, GROUP, self._lanes)
        if self._scales is None:
            return [
                cast(self._elements(self._codes, row, group * GROUP + start, lanes), f"float32x{lanes}")
                for start in starts
            ]
        codes = self._kernel.let("codes", self._fields(self._codes, row, group, self._format.low_bits))
        if self._format.high_bits:
            high = self._fields(self._high, row, group, self._format.high_bits)
            codes = self._kernel.let("codes", codes | high << number(self._format.low_bits, f"uint8x{GROUP}"))
        return [self._weights(row, group, start, take_lanes(codes, range(start, start + lanes))) for start in starts]

    def _weights(self, row: Scalar, group: Scalar, start: int, codes: Scalar) -> Scalar:
        """Weights of codes of a group's columns from ``start`` on."""
        fmt, lanes = self._format, self._lanes
        values = cast(cast(codes, f"int32x{lanes}"), f"float32x{lanes}")
        if fmt.scales_a_chunk == 2:
            # A row may end in the first half of a group.
            index = minimum(group * 2 + start // HALF_GROUP, self._num_scales - 1)
        else:
            index = 0 if fmt.group == ROW else group // (fmt.group // GROUP)

        def factor(plane: Array | None, place: int) -> Scalar:
            assert plane is not None
            if self._units is None:
                return splat(cast(self._elements(plane, row, index, 1), "float32"), lanes)
            integer, unit = (
                cast(self._elements(each, row, at * fmt.factors_a_group + place, 1), "float32")
                for each, at in ((plane, index), (self._units, index // (UNIT_COLUMNS // fmt.group)))
            )
            return splat(integer * unit, lanes)

        scale = factor(self._scales, 0)
        if not fmt.offset:
            return (values - number(fmt.zero, f"float32x{lanes}")) * scale
        offset = factor(self._offsets, 1)
        return (values - offset) * scale if fmt.offset == "z" else values * scale + offset

    def _fields(self, plane: Array, row: Scalar, group: Scalar, bits: int) -> Scalar:
        """The parts of a group's codes that a plane holds, in the order of columns, as uint8x32."""
        size, parts = 4 * bits, 8 // bits
        stored = f"uint8x{size}"
        packed = self._kernel.let("packed", reinterpret(self._elements(plane, row, group * bits, bits), stored))
        if parts == 1:
            return packed
        fields = [packed >> number(i * bits, stored) & number((1 << bits) - 1, stored) for i in range(parts)]
        while len(fields) > 1:
            each = 2 * lanes_of(fields[0])
            pairs = zip(fields[::2], fields[1::2], strict=True)
            fields = [self._kernel.let("fields", join(*pair, lanes=list(range(each)))) for pair in pairs]
        # Column e is in byte e % 4 of word e // (4 * parts), in that word's index e // 4 % parts.
        return take_lanes(fields[0], [size * (e // 4 % parts) + 4 * (e // (4 * parts)) + e % 4 for e in range(GROUP)])

    def _elements(self, plane: Array, row: Scalar, first: Scalar, count: int) -> Scalar:
        """A row's elements of a plane, which are not contiguous."""
        found = [plane[row // TILE_ROWS, first + i, row % TILE_ROWS] for i in range(count)]
        return vector(*found) if count > 1 else found[0]


def factor_planes(
    kernel: KernelBuilder, role: str, rows: int, columns: int, fmt: WeightFormat
) -> tuple[Array | None, Array | None, Array | None]:
    """The planes of scales, of zero points or biases, and of units; None for those that a format lacks. With units, the
    biases are in the plane of the scales.
    """
    tiles, count = -(-rows // TILE_ROWS), fmt.scales_of(columns)
    if fmt.has_units:
        scales = kernel.buffer(f"{role}.s", (tiles, fmt.factors_a_group * count, TILE_ROWS), "int8")
        units = kernel.buffer(f"{role}.su", (tiles, fmt.factors_a_group * units_of(columns), TILE_ROWS), "float16")
        return scales, scales if fmt.offset else None, units
    shape = (tiles, count, TILE_ROWS)
    return (
        kernel.buffer(f"{role}.s", shape, fmt.scale_dtype) if fmt.scale_dtype else None,
        kernel.buffer(f"{role}.{fmt.offset}", shape, fmt.scale_dtype) if fmt.offset else None,
        None,
    )
