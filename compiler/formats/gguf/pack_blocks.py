"""Blocks of GGUF from codes, scales and biases: the inverse of `block_types.py` for the types that hold a bundle's
codes exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from ..small_floats import FP4_CODES
from .block_types import Bytes

ELEMENTS = 32
Halves = npt.NDArray[np.float16]
# Codes (n, B, 32), scales (n, B) and biases (n, B), of types without biases None, as blocks (n, B, bytes).
Pack = Callable[[Bytes, Halves, Halves | None], Bytes]


def pack_blocks(kind: str, codes: Bytes, scales: Halves, biases: Halves | None = None) -> Bytes:
    """Codes (n, K) and their scales and biases (n, K / 32) as rows (n, bytes) of a type of PACKS."""
    grouped = codes.reshape(len(codes), -1, ELEMENTS)
    return PACKS[kind](grouped, scales, biases).reshape(len(codes), -1)


def factor_bytes(factors: Halves | None) -> Bytes:
    assert factors is not None
    return np.ascontiguousarray(factors, "<f2")[..., None].view(np.uint8)


def nibble_bytes(codes: Bytes) -> Bytes:
    """The low 4 bits of 32 codes: byte i holds elements i and i + 16."""
    low = codes & np.uint8(15)
    packed: Bytes = low[..., :16] | low[..., 16:] << np.uint8(4)
    return packed


def fifth_bits(codes: Bytes) -> Bytes:
    return np.packbits(codes >> np.uint8(4), axis=-1, bitorder="little")


def q4_0(codes: Bytes, scales: Halves, _: Halves | None) -> Bytes:
    return np.concatenate([factor_bytes(scales), nibble_bytes(codes)], axis=-1)


def q4_1(codes: Bytes, scales: Halves, biases: Halves | None) -> Bytes:
    return np.concatenate([factor_bytes(scales), factor_bytes(biases), nibble_bytes(codes)], axis=-1)


def q5_0(codes: Bytes, scales: Halves, _: Halves | None) -> Bytes:
    return np.concatenate([factor_bytes(scales), fifth_bits(codes), nibble_bytes(codes)], axis=-1)


def q5_1(codes: Bytes, scales: Halves, biases: Halves | None) -> Bytes:
    factors = [factor_bytes(scales), factor_bytes(biases)]
    return np.concatenate([*factors, fifth_bits(codes), nibble_bytes(codes)], axis=-1)


def q8_0(codes: Bytes, scales: Halves, _: Halves | None) -> Bytes:
    return np.concatenate([factor_bytes(scales), codes ^ np.uint8(128)], axis=-1)


def mxfp4(codes: Bytes, exponents: npt.NDArray[np.uint8]) -> Bytes:
    """Codes (n, K) of FP4_CODES and the exponents (n, K / 32) of their powers of two, as rows (n, bytes)."""
    numbers = np.zeros(256, np.uint8)
    # -0 and 0 have one code.
    numbers[FP4_CODES[::-1]] = np.arange(len(FP4_CODES), dtype=np.uint8)[::-1]
    grouped = numbers[codes].reshape(len(codes), -1, ELEMENTS)
    return np.concatenate([exponents[..., None], nibble_bytes(grouped)], axis=-1).reshape(len(codes), -1)


PACKS: Mapping[str, Pack] = {"Q4_0": q4_0, "Q4_1": q4_1, "Q5_0": q5_0, "Q5_1": q5_1, "Q8_0": q8_0}
