"""Integers that a checkpoint stores, of 2, 3, 4, 5, 6 or 8 bits, with their own scales.

A scale belongs to a whole row (an output channel), or to ``group`` columns of it. Nothing is rounded: the planes hold
the checkpoint's integers and its scales in the order that kernels read. The value of a code depends on ``offset``:

    ""   w = (code - 2^(bits - 1)) * s
    "z"  w = (code - z) * s, with a zero point z, a whole number
    "b"  w = code * s + b, with a bias b

Planes of a matrix (N, K), with K padded to whole groups of 32:

    q  (N, K * low / 32) uint32, the codes' low bits: 2 of 2 and 3 bits, 4 of 4, 5 and 6 bits, or 8. Byte b of a word
       holds element b in its lowest bits, element b + 4 in the next ones, and so on, so that ``u >> (low * i)`` and a
       mask give four consecutive elements. 4 and 8 bits are in the order of `q4.py` and `q8.py`.
    h  (N, K * high / 32) uint32, the codes' high bits in the same order: 1 of 3 and 5 bits, 2 of 6 bits; else absent.
    s  (N, 1), or (N, ceil(K / group)), float32, float16 or int8.
    z or b  the same shape and dtype as s, if ``offset`` names it; but int8 biases are in s, each after its scale.
    su (N, ceil(K / 256)) float16: the units of int8 scales, each before that of the biases, if there are any. A scale
       is its integer times its unit, and so is a bias, both exact in float32 (ggml's K-blocks).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..runtime.errors import QuantizationError
from .base import GROUP, GROUPS, ROW, Array, FloatArray, PlaneLayout, padded_columns, require_finite

WIDTHS = (2, 3, 4, 5, 6, 8)
# The smallest group: that of ggml's Q6_K.
HALF_GROUP = 16
# Bits of a code in plane q; all others are in plane h.
LOW_BITS = {2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 8: 8}
OFFSETS = ("", "z", "b")
# The end of a format's name, by the dtype of its scales.
SCALE_DTYPES = {"float32": "", "float16": "_f16", "int8": "_i8"}
# The columns whose int8 scales share a unit.
UNIT_COLUMNS = 256
_NAME = re.compile(r"q([234568])(?:c|g([1-9][0-9]{0,8}))([zb]?)(_f16|_i8)?")


@dataclass(frozen=True, slots=True)
class Products:
    """Scales or biases (N, scales): ``integers`` of int8 times ``units`` (N, ceil(K / 256)) of float16."""

    integers: Array
    units: Array


@dataclass(frozen=True, slots=True)
class Codes:
    """``group``: the columns that share a scale: 16, a multiple of 32, or ROW. ``scale``: the dtype of the scales, zero
    points and biases; int8 for scales and biases with units.
    """

    bits: int
    group: int = ROW
    offset: str = ""
    scale: str = "float32"

    def __post_init__(self) -> None:
        if self.bits not in WIDTHS or (self.group % GROUP and self.group != HALF_GROUP) or self.group < 0:
            raise QuantizationError(
                f"codes of {self.bits} bits with a scale for {self.group} columns are not supported; supported: "
                f"{', '.join(map(str, WIDTHS))} bits with a scale for a row, for {HALF_GROUP} columns, or for a "
                f"multiple of {GROUP} columns"
            )
        if self.offset not in OFFSETS or self.scale not in SCALE_DTYPES:
            raise QuantizationError(
                f"codes with offset {self.offset!r} and scales of {self.scale} are not supported; supported: zero "
                f"points ('z'), biases ('b') or none, and scales of {' or '.join(SCALE_DTYPES)}"
            )
        if self.scale == "int8" and (self.offset == "z" or self.group == ROW or UNIT_COLUMNS % self.group):
            raise QuantizationError(
                f"int8 scales for {self.group} columns with offset {self.offset!r} are not supported; supported: "
                f"groups that divide {UNIT_COLUMNS}, with biases ('b') or without an offset"
            )

    @property
    def name(self) -> str:
        scales = "c" if self.group == ROW else f"g{self.group}"
        return f"q{self.bits}{scales}{self.offset}{SCALE_DTYPES[self.scale]}"

    @property
    def kind(self) -> str:
        return f"q{self.bits}"

    @property
    def low_bits(self) -> int:
        return LOW_BITS[self.bits]

    @property
    def zero(self) -> int:
        """The code that means 0, without an offset."""
        return 1 << (self.bits - 1)

    def planes(self, columns: int) -> tuple[PlaneLayout, ...]:
        words = padded_columns(columns) // GROUP
        high = self.bits - self.low_bits
        factors = ("s", *self.offset)
        codes = [
            PlaneLayout("q", "uint32", words * self.low_bits),
            *([PlaneLayout("h", "uint32", words * high)] if high else []),
        ]
        scales = self.scales_of(columns)
        if self.scale == "int8":
            units = PlaneLayout("su", "float16", len(factors) * units_of(columns))
            return (*codes, PlaneLayout("s", "int8", len(factors) * scales), units)
        return (*codes, *(PlaneLayout(name, self.scale, scales) for name in factors))

    @property
    def with_float_scales(self) -> Codes:
        """The form of `expanded` planes."""
        return replace(self, scale="float32") if self.scale == "int8" else self

    def expanded(self, planes: Mapping[str, Array]) -> Mapping[str, Array]:
        """The same planes with int8 scales and biases as float32, which is exact."""
        if self.scale != "int8":
            return planes
        names = ("q", *("h" if self.bits != self.low_bits else ""), "s", *self.offset)
        return {name: self.factors(planes, name) if name in ("s", "b") else planes[name] for name in names}

    def factors(self, planes: Mapping[str, Array], name: str) -> FloatArray:
        """The scales, zero points or biases (N, scales) of the plane ``name``."""
        if self.scale != "int8":
            values: FloatArray = planes[name].astype(np.float32)
            return values
        names = ("s", *self.offset)
        integers, units = (
            planes[plane][:, names.index(name) :: len(names)].astype(np.float32) for plane in ("s", "su")
        )
        each: FloatArray = np.repeat(units, UNIT_COLUMNS // self.group, axis=1)[:, : integers.shape[1]]
        return integers * each

    def scales_of(self, columns: int) -> int:
        """The number of scales of a row."""
        return 1 if self.group == ROW else -(-columns // self.group)

    def store(
        self, codes: npt.NDArray[np.uint8], scales: Array | Products, offsets: Array | Products | None = None
    ) -> dict[str, Array]:
        """Planes of codes (N, K), 0 to 2^bits - 1, and of their scales (N, 1 or K / group), zero points or biases;
        `Products` if these are int8. Raises QuantizationError for a scale or an offset that is not finite, or that its
        dtype cannot represent exactly.
        """
        rows, columns = codes.shape
        padded = np.full((rows, padded_columns(columns)), 0 if self.offset else self.zero, np.uint8)
        padded[:, :columns] = codes
        low, high = self.low_bits, self.bits - self.low_bits
        planes: dict[str, Array] = {"q": pack_bits(padded & np.uint8((1 << low) - 1) if high else padded, low)}
        if high:
            planes["h"] = pack_bits(padded >> np.uint8(low), high)
        given = dict(zip(("s", *self.offset), (scales, offsets), strict=False))
        if self.scale == "int8":
            products = [each for each in given.values() if isinstance(each, Products)]
            assert len(products) == len(given), self.name
            for each in products:
                require_finite(each.units.astype(np.float32))
            planes["s"] = alternating([each.integers for each in products])
            planes["su"] = alternating([each.units for each in products])
            return planes
        for name, factors in given.items():
            assert factors is not None
            assert not isinstance(factors, Products), self.name
            planes[name] = self._stored(factors)
        return planes

    def _stored(self, values: Array) -> Array:
        exact = np.ascontiguousarray(values, np.float32)
        require_finite(exact)
        stored = exact.astype(self.scale)
        if self.scale == "float16" and (stored != exact).any():
            raise QuantizationError(f"scales of {self.name} are not exact in float16; store them as float32")
        return stored

    def codes(self, planes: Mapping[str, Array]) -> npt.NDArray[np.uint8]:
        """The codes (N, K) of planes, with the padding's."""
        codes = unpack_bits(planes["q"], self.low_bits)
        if self.bits != self.low_bits:
            codes |= unpack_bits(planes["h"], self.bits - self.low_bits) << np.uint8(self.low_bits)
        return codes

    def unpack(self, planes: Mapping[str, Array], columns: int) -> FloatArray:
        codes = self.codes(planes)[:, :columns].astype(np.float32)
        factors = {name: self.of_columns(self.factors(planes, name), columns) for name in ("s", *self.offset)}
        scales = factors["s"]
        if self.offset == "b":
            return codes * scales + factors["b"]
        zero = factors["z"] if self.offset else np.float32(self.zero)
        weights: FloatArray = (codes - zero) * scales
        return weights

    def of_columns(self, factors: Array, columns: int) -> FloatArray:
        """The scale, zero point or bias of each column, (N, 1) or (N, columns)."""
        each: FloatArray = factors.astype(np.float32)
        return each if self.group == ROW else np.repeat(each, self.group, axis=1)[:, :columns]


def alternating(parts: Sequence[Array]) -> Array:
    """The columns of matrices of one shape in turn."""
    return np.stack(parts, axis=2).reshape(len(parts[0]), -1)


def units_of(columns: int) -> int:
    """The number of units of a row's int8 scales."""
    return -(-columns // UNIT_COLUMNS)


def pack_bits(parts: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint32]:
    """Parts (N, K) of ``bits`` bits each, K a multiple of 32, as words (N, K * bits / 32)."""
    # Each word holds the bytes of 4 elements.
    quads = np.ascontiguousarray(parts).view(np.uint32).reshape(len(parts), -1, 8 // bits)
    packed = quads[..., 0].copy()
    for place in range(1, 8 // bits):
        packed |= quads[..., place] << np.uint32(place * bits)
    return packed


def unpack_bits(words: Array, bits: int) -> npt.NDArray[np.uint8]:
    """The parts (N, K) of words (N, K * bits / 32)."""
    quads = np.ascontiguousarray(words).view(np.uint32)
    # The lowest bits of each of 4 bytes.
    mask = np.uint32(((1 << bits) - 1) * 0x01010101)
    parts = np.empty((*quads.shape, 8 // bits), np.uint32)
    for place in range(8 // bits):
        parts[..., place] = quads >> np.uint32(place * bits) & mask
    return parts.reshape(len(quads), -1).view(np.uint8)


def in_order(words: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint8]:
    """Words (N, W) of plane ``q`` as bytes (N, 4 W) in which a lower element has lower bits."""
    elements = unpack_bits(words, bits)
    elements = elements.reshape(len(words), -1, 8 // bits)
    ordered = elements[..., 0].copy()
    for place in range(1, 8 // bits):
        ordered |= elements[..., place] << np.uint8(place * bits)
    return ordered


def block_of(columns: int) -> int:
    """The largest block size of other frameworks' kernels that divides a row; the smallest block size if none does."""
    return next((block for block in reversed(GROUPS) if columns % block == 0), GROUP)


def codes_by_name(name: str) -> Codes | None:
    """The format that a bundle's manifest names, such as "q2c" (a scale for each row) or "q4g128z_f16"."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    bits, group, offset, suffix = match.groups()
    scale = next(dtype for dtype, end in SCALE_DTYPES.items() if end == (suffix or ""))
    try:
        return Codes(int(bits), int(group or ROW), offset, scale)
    except QuantizationError:
        return None
