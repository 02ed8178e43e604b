"""The types of GGUF whose codes are indices of tables of vectors (IQ1, IQ2 and IQ3), and those of one or two bits.

The values of the tables are whole numbers, or eighths (IQ1), times a scale for 16 or 32 columns. So they become codes
with more bits than in the file, and nothing is rounded. The tables themselves are those of llama.cpp's Python package
``gguf``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...ir.e4m3 import VALUES as E4M3_VALUES
from ...quant import Codes
from ..small_floats import FP4_CODES
from .block_types import BLOCK_TYPES, BlockType, Bytes, Floats, Unpacked, bits_of, halves, nibbles, quarters

# float16's 1.
ONE = (0x00, 0x3C)


def has_tables() -> bool:
    """Whether the package with the tables is installed."""
    return find_spec("gguf") is not None


class Scaled(NamedTuple):
    """The factor of blocks (n, B, 1), the factors of their groups (n, B, groups), and the same blocks with factor 1."""

    factor: Floats
    groups: Floats
    with_one: Bytes


def from_table(name: str, form: Codes, read: Callable[[Bytes], Scaled], steps: int, data: Bytes) -> Unpacked:
    """Codes of ``form`` for blocks (n, B, bytes), where the table's values are multiples of 1 / ``steps``."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    factor, groups, with_one = read(data)
    weights = dequantize(with_one.reshape(-1, data.shape[-1]), GGMLQuantizationType[name])
    values = weights.reshape(*groups.shape, form.group) / groups[..., None] * np.float32(steps)
    codes = (np.rint(values) + np.float32(form.zero)).astype(np.uint8)
    return Unpacked(codes.reshape(*data.shape[:-1], -1), factor * groups / np.float32(steps))


def with_factor_first(data: Bytes, groups: Floats) -> Scaled:
    """Blocks that begin with their factor."""
    with_one = data.copy()
    with_one[..., :2] = ONE
    return Scaled(halves(data[..., :2]).astype(np.float32), groups, with_one)


def words(data: Bytes, dtype: str) -> npt.NDArray[Any]:
    return np.ascontiguousarray(data).view(dtype)


def scaled(integers: npt.NDArray[Any], factor: float, offset: float) -> Floats:
    return integers.astype(np.float32) * np.float32(factor) + np.float32(offset)


def in_turn(data: Bytes) -> Bytes:
    """Bytes (.., k) as (.., 2 k) halves, the low one of each first."""
    return np.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:-1], -1)


def iq2_xxs(data: Bytes) -> Scaled:
    return with_factor_first(data, scaled(words(data[..., 2:], "<u4")[..., 1::2] >> 28, 0.25, 0.125))


def iq2_xs(data: Bytes) -> Scaled:
    return with_factor_first(data, scaled(in_turn(data[..., 66:]), 0.25, 0.125))


def iq2_s(data: Bytes) -> Scaled:
    return with_factor_first(data, scaled(in_turn(data[..., 74:]), 0.25, 0.125))


def iq3_xxs(data: Bytes) -> Scaled:
    return with_factor_first(data, scaled(words(data[..., 66:], "<u4") >> 28, 0.5, 0.25))


def iq3_s(data: Bytes) -> Scaled:
    return with_factor_first(data, scaled(in_turn(data[..., 106:]), 2, 1))


def iq1_s(data: Bytes) -> Scaled:
    return with_factor_first(data, scaled(words(data[..., 34:], "<u2") >> 12 & 7, 2, 1))


def iq1_m(data: Bytes) -> Scaled:
    """The factor's four bits each are the highest of four words of scales."""
    packed = words(data[..., 48:], "<u2")
    places = np.arange(0, 16, 4, dtype=np.uint16)
    factor = np.bitwise_or.reduce(packed >> 12 << places, axis=-1, keepdims=True).view("<f2").astype(np.float32)
    groups = packed[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7
    with_one = data.copy()
    one = packed & 0x0FFF | (int.from_bytes(bytes(ONE), "little") >> places & 15).astype(np.uint16) << 12
    with_one[..., 48:] = words(one.astype("<u2"), "u1")
    return Scaled(factor, scaled(groups.reshape(*data.shape[:-1], 16), 2, 1), with_one)


# --- types without a table ---


def ternary(codes: Bytes, factor: Bytes) -> Unpacked:
    """Codes 0 to 3, which mean -1 to 2. A format of ours has -2 to 1, so the sign is the scale's."""
    return Unpacked(np.uint8(3) - codes, -halves(factor))


def tq1_0(data: Bytes) -> Unpacked:
    """Five or four digits of base 3 in a byte, as a fraction."""
    parts = []
    for first, last, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        powers = np.array([1, 3, 9, 27, 81][:digits], np.uint8)
        parts.append((data[..., None, first:last] * powers[:, None]).reshape(*data.shape[:-1], -1))
    fractions = np.concatenate(parts, axis=-1)
    return ternary((fractions.astype(np.uint16) * 3 >> 8).astype(np.uint8), data[..., 52:])


def tq2_0(data: Bytes) -> Unpacked:
    return ternary(quarters(data[..., :64]), data[..., 64:])


def q2_0(data: Bytes) -> Unpacked:
    codes = data[..., 2:, None] >> np.arange(0, 8, 2, dtype=np.uint8) & np.uint8(3)
    return ternary(codes.reshape(*data.shape[:-1], -1), data[..., :2])


def q1_0(data: Bytes) -> Unpacked:
    # Plus or minus the scale.
    return Unpacked(bits_of(data[..., 2:]) * np.uint8(2) + np.uint8(1), halves(data[..., :2]))


def nvfp4(data: Bytes) -> Unpacked:
    scales = E4M3_VALUES[data[..., :4] & 127]
    codes = FP4_CODES[nibbles(data[..., 4:].reshape(*data.shape[:-1], 4, 8))]
    # ggml reads the byte that is not a number as 0.
    return Unpacked(codes.reshape(*data.shape[:-1], 64), np.nan_to_num(scales) / np.float32(2))


def _table(name: str, size: int, form: Codes, read: Callable[[Bytes], Scaled], steps: int = 1) -> BlockType:
    unpack = partial(from_table, name, form, read, steps)
    return BlockType(name, 256, size, form, unpack, needs_tables=True)


# The type that a fork of llama.cpp gives the number of Q2_0.
_Q2_0_OF_128 = BlockType("Q2_0", 128, 34, Codes(2, 128, "", "float16"), q2_0)
TYPES = {
    **BLOCK_TYPES,
    16: _table("IQ2_XXS", 66, Codes(8, 32), iq2_xxs),
    17: _table("IQ2_XS", 74, Codes(8, 16), iq2_xs),
    18: _table("IQ3_XXS", 98, Codes(8, 32), iq3_xxs),
    19: _table("IQ1_S", 50, Codes(5, 32), iq1_s, steps=8),
    21: _table("IQ3_S", 110, Codes(5, 32), iq3_s),
    22: _table("IQ2_S", 82, Codes(8, 16), iq2_s),
    29: _table("IQ1_M", 56, Codes(5, 16), iq1_m, steps=8),
    34: BlockType("TQ1_0", 256, 54, Codes(2, 256, "", "float16"), tq1_0),
    35: BlockType("TQ2_0", 256, 66, Codes(2, 256, "", "float16"), tq2_0),
    40: BlockType("NVFP4", 64, 36, Codes(5, 16, "", "float16"), nvfp4),
    41: BlockType("Q1_0", 128, 18, Codes(2, 128, "", "float16"), q1_0),
    42: BlockType("Q2_0", 64, 18, Codes(2, 64, "", "float16"), q2_0, other=_Q2_0_OF_128),
}
