"""The tensor types of GGUF: the byte layout of blocks of weights, and their codes, scales and offsets.

The layouts are those of ggml (ggml-common.h and ggml-quants.c of github.com/ggml-org/llama.cpp). A block is
consecutive elements of one row. Nothing is rounded: the scales of blocks of 256 stay products of a float16 and a small
integer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...quant import Codes, Products
from ..small_floats import FP4_CODES

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class Unpacked(NamedTuple):
    """Codes (n, B, elements) of B blocks in each of n rows, their scales (n, B, scales) and biases; None if there are
    none. Products have units (n, B, 1).
    """

    codes: npt.NDArray[np.uint8]
    scales: npt.NDArray[Any] | Products
    biases: npt.NDArray[Any] | Products | None = None


@dataclass(frozen=True, slots=True)
class BlockType:
    """``elements`` in ``bytes``. A type has codes of the ``form`` that ``unpack`` gives for blocks (n, B, bytes), or
    ``floats`` (n, B, elements). ``needs_tables``: those of `table_types.py`. ``other``: the type that has the same
    number in other files.
    """

    name: str
    elements: int
    bytes: int
    form: Codes | None = None
    unpack: Callable[[Bytes], Unpacked] | None = None
    floats: Callable[[Bytes], Floats] | None = None
    needs_tables: bool = False
    other: BlockType | None = None


def halves(data: Bytes) -> npt.NDArray[np.float16]:
    """Consecutive pairs of bytes (.., 2 k) as (.., k)."""
    return np.ascontiguousarray(data).view("<f2")


def nibbles(data: Bytes) -> Bytes:
    """Bytes (.., k) as (.., 2 k): first all low halves, then all high ones."""
    return np.concatenate([data & 15, data >> 4], axis=-1)


def bits_of(data: Bytes) -> Bytes:
    """Bytes (.., k) as bits (.., 8 k), the lowest first."""
    return np.unpackbits(data, axis=-1, bitorder="little")


def with_high(low: Bytes, high: Bytes, place: int) -> Bytes:
    """Combine low bits and high bits, which begin at bit ``place``, to codes."""
    codes: Bytes = low | high << np.uint8(place)
    return codes


# --- blocks of 32 ---


def q4_0(data: Bytes) -> Unpacked:
    return Unpacked(nibbles(data[..., 2:]), halves(data[..., :2]))


def q4_1(data: Bytes) -> Unpacked:
    return Unpacked(nibbles(data[..., 4:]), halves(data[..., :2]), halves(data[..., 2:4]))


def q5_0(data: Bytes) -> Unpacked:
    return Unpacked(with_high(nibbles(data[..., 6:]), bits_of(data[..., 2:6]), 4), halves(data[..., :2]))


def q5_1(data: Bytes) -> Unpacked:
    codes = with_high(nibbles(data[..., 8:]), bits_of(data[..., 4:8]), 4)
    return Unpacked(codes, halves(data[..., :2]), halves(data[..., 2:4]))


def q8_0(data: Bytes) -> Unpacked:
    # -128 becomes 0, and 127 becomes 255.
    return Unpacked(data[..., 2:] ^ np.uint8(128), halves(data[..., :2]))


# --- blocks of 256 ---


def quarters(data: Bytes) -> Bytes:
    """64 bytes of 2-bit parts as (.., 256): in each half of the bytes, first the lowest parts of all bytes, then the
    next ones.
    """
    parts = data.reshape(*data.shape[:-1], 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & np.uint8(3)
    return parts.reshape(*data.shape[:-1], 256)


def products(units: npt.NDArray[np.float16], integers: npt.NDArray[Any]) -> Products:
    return Products(integers.astype(np.int8), units)


def q2_k(data: Bytes) -> Unpacked:
    scales = data[..., :16]
    return Unpacked(
        quarters(data[..., 16:80]),
        products(halves(data[..., 80:82]), scales & 15),
        products(-halves(data[..., 82:84]), scales >> 4),
    )


def q3_k(data: Bytes) -> Unpacked:
    # Bit b of byte l of the mask belongs to element 32 b + l.
    high = bits_of(data[..., :32]).reshape(*data.shape[:-1], 32, 8).swapaxes(-1, -2).reshape(*data.shape[:-1], 256)
    packed = data[..., 96:108]
    low_parts = nibbles(packed[..., :8])
    high_parts = packed[..., None, 8:12] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    integers = (low_parts | high_parts.reshape(low_parts.shape) << 4).astype(np.int16) - 32
    return Unpacked(with_high(quarters(data[..., 32:96]), high, 2), products(halves(data[..., 108:110]), integers))


def scales_and_mins(packed: Bytes) -> tuple[Bytes, Bytes]:
    """12 bytes as 8 scales and 8 minimums of 6 bits each."""
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    minimums = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    return scales, minimums


def nibbles_by_32(data: Bytes) -> Bytes:
    """128 bytes as (.., 256): in each 32 bytes, first the low nibbles, then the high ones."""
    return nibbles(data.reshape(*data.shape[:-1], 4, 32)).reshape(*data.shape[:-1], 256)


def q4_k(data: Bytes) -> Unpacked:
    scales, minimums = scales_and_mins(data[..., 4:16])
    return Unpacked(
        nibbles_by_32(data[..., 16:]),
        products(halves(data[..., :2]), scales),
        products(-halves(data[..., 2:4]), minimums),
    )


def q5_k(data: Bytes) -> Unpacked:
    scales, minimums = scales_and_mins(data[..., 4:16])
    # Bit b of byte l belongs to element 32 b + l.
    high = bits_of(data[..., 16:48]).reshape(*data.shape[:-1], 32, 8).swapaxes(-1, -2).reshape(*data.shape[:-1], 256)
    return Unpacked(
        with_high(nibbles_by_32(data[..., 48:]), high, 4),
        products(halves(data[..., :2]), scales),
        products(-halves(data[..., 2:4]), minimums),
    )


def q6_k(data: Bytes) -> Unpacked:
    # In each half of 64 bytes, the low nibbles of all bytes precede the high ones.
    low = nibbles(data[..., :128].reshape(*data.shape[:-1], 2, 64)).reshape(*data.shape[:-1], 256)
    high = quarters(data[..., 128:192])
    scales = np.ascontiguousarray(data[..., 192:208]).view(np.int8)
    return Unpacked(with_high(low, high, 4), products(halves(data[..., 208:210]), scales))


# --- types with indices into a table: the table's values are used as codes, with more bits ---


# The values of IQ4_NL and IQ4_XS, as codes of 8 bits.
_NONLINEAR = (np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]) + 128).astype(
    np.uint8
)


# --- floats ---


def f32(data: Bytes) -> Floats:
    return np.ascontiguousarray(data).view("<f4").astype(np.float32, copy=False)


def f16(data: Bytes) -> Floats:
    return halves(data).astype(np.float32)


def bf16(data: Bytes) -> Floats:
    widened: Floats = (np.ascontiguousarray(data).view("<u2").astype(np.uint32) << 16).view(np.float32)
    return widened


def iq4_nl(data: Bytes) -> Unpacked:
    return Unpacked(_NONLINEAR[nibbles(data[..., 2:])], halves(data[..., :2]))


def iq4_xs(data: Bytes) -> Unpacked:
    low = np.stack([data[..., 4:8] & 15, data[..., 4:8] >> 4], axis=-1).reshape(*data.shape[:-1], 8)
    high = np.ascontiguousarray(data[..., 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = products(halves(data[..., :2]), (low | high << 4).astype(np.int16) - 32)
    codes = _NONLINEAR[nibbles(data[..., 8:].reshape(*data.shape[:-1], 8, 16))]
    return Unpacked(codes.reshape(*data.shape[:-1], 256), scales)


def mxfp4(data: Bytes) -> Unpacked:
    # A weight is 2^(e - 127) times half of the value in the table.
    return Unpacked(FP4_CODES[nibbles(data[..., 1:])], np.ldexp(np.float32(1), data[..., :1].astype(np.int32) - 128))


BLOCK_TYPES = {
    0: BlockType("F32", 1, 4, floats=f32),
    1: BlockType("F16", 1, 2, floats=f16),
    2: BlockType("Q4_0", 32, 18, Codes(4, 32, "", "float16"), q4_0),
    3: BlockType("Q4_1", 32, 20, Codes(4, 32, "b", "float16"), q4_1),
    6: BlockType("Q5_0", 32, 22, Codes(5, 32, "", "float16"), q5_0),
    7: BlockType("Q5_1", 32, 24, Codes(5, 32, "b", "float16"), q5_1),
    8: BlockType("Q8_0", 32, 34, Codes(8, 32, "", "float16"), q8_0),
    10: BlockType("Q2_K", 256, 84, Codes(2, 16, "b", "int8"), q2_k),
    11: BlockType("Q3_K", 256, 110, Codes(3, 16, "", "int8"), q3_k),
    12: BlockType("Q4_K", 256, 144, Codes(4, 32, "b", "int8"), q4_k),
    13: BlockType("Q5_K", 256, 176, Codes(5, 32, "b", "int8"), q5_k),
    14: BlockType("Q6_K", 256, 210, Codes(6, 16, "", "int8"), q6_k),
    20: BlockType("IQ4_NL", 32, 18, Codes(8, 32, "", "float16"), iq4_nl),
    23: BlockType("IQ4_XS", 256, 136, Codes(8, 32, "", "int8"), iq4_xs),
    30: BlockType("BF16", 1, 2, floats=bf16),
    39: BlockType("MXFP4", 32, 17, Codes(5, 32), mxfp4),
}
