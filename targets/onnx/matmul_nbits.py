"""Quantized matrices in the form that ONNX Runtime's MatMulNBits and GatherBlockQuantized require, and the check
against their slow forms.

A matrix (N, K) is a blob (N, ceil(K / block), block * bits / 8) of bytes, within which a lower element has the lower
bits, and scales (N, ceil(K / block)). Without zero points, a code means code - 2^(bits - 1), as in our formats. Zero
points are integers of as many bits as the codes, packed along a row in the same order: (N, ceil(blocks * bits / 8)). If
a row has one scale, it is repeated for each block.
"""

from __future__ import annotations

import numpy as np

from nearfar.compiler.ir.ops import Array
from nearfar.compiler.quant.codes import in_order
from nearfar.compiler.runtime.errors import QuantizationError

BITS = {"q2": 2, "q4": 4, "q8": 8}
BLOCKS = (32, 64, 128)
# 4: inputs become 8-bit integers with one scale per block, for integer dot products. Lower levels of the CPU kernels
# unpack the weights to floats.
ACCURACY_LEVEL = 4


def require_fast(bits: int, block: int, zero_points: str | None = None, accuracy_level: int = ACCURACY_LEVEL) -> None:
    """Raise QuantizationError for a MatMulNBits that ONNX Runtime computes without a fast kernel, by unpacking the
    matrix first.

    ``zero_points`` is their dtype, None for symmetric codes.
    """
    where = f"MatMulNBits of {bits} bits in blocks of {block}"
    if bits not in (2, 4, 8):
        raise QuantizationError(
            f"{where}: ONNX Runtime has no fast kernel for {bits} bits; use 4 or 8 (--quantization q4f16, q8f16)"
        )
    if block not in BLOCKS:
        raise QuantizationError(
            f"{where}: fast kernels support blocks of 32, 64 or 128; use one of these as --group-size"
        )
    if zero_points not in (None, "uint8"):
        raise QuantizationError(
            f"{where}: zero points of {zero_points} unpack the whole matrix at every step; use symmetric codes"
        )
    if bits == 8 and accuracy_level != ACCURACY_LEVEL:
        raise QuantizationError(
            f"{where}: at accuracy level {accuracy_level} there is no fast kernel; use level {ACCURACY_LEVEL}"
        )


def blob_rows(kind: str, words: Array) -> Array:
    """Words (N, W) of plane "q" of kind q2, q4 or q8, as the bytes (N, 4 W) of a blob, in which blocks are consecutive
    too.
    """
    if kind == "q8":
        return words.view(np.uint8)
    if kind == "q2":
        return in_order(words, 2)
    # In our words, byte b holds elements b and b + 4; in a blob, it holds elements 2 b and 2 b + 1.
    halves = (words & np.uint32(0x0F0F0F0F), (words >> np.uint32(4)) & np.uint32(0x0F0F0F0F))
    low, high = (pair_bytes(half) for half in halves)
    return np.ascontiguousarray(low | high << np.uint32(16)).view(np.uint8)


def zero_rows(zeros: Array, bits: int) -> Array:
    """Zero points (N, blocks) as the bytes (N, ceil(blocks * bits / 8)) of a MatMulNBits. Raises QuantizationError for
    one that is not a whole number of ``bits`` bits.
    """
    whole = zeros.astype(np.uint8)
    if (whole != zeros).any() or whole.max(initial=0) >= 1 << bits:
        raise QuantizationError(f"ONNX Runtime needs zero points that are whole numbers below {1 << bits}")
    single = np.unpackbits(whole[..., None], axis=2, count=bits, bitorder="little")
    return np.packbits(single.reshape(len(whole), -1), axis=1, bitorder="little")


def pair_bytes(half: Array) -> Array:
    """The four low nibbles of a word's bytes, as its lower two bytes."""
    pairs = half | half >> np.uint32(4)
    low: Array = pairs & np.uint32(0xFF) | pairs >> np.uint32(8) & np.uint32(0xFF00)
    return low
