"""resize_u8: resizes a picture of bytes with torchvision's integer arithmetic, bit for bit.

It is Pillow's algorithm with 16-bit weights: a pass along the rows, rounded to bytes, then one along the columns. A
filter is as wide as the picture shrinks, which is antialiasing. `web/src/images/resize.ts` computes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float64]

# Results that one product of matrices computes. They share most of the pixels that they read.
BLOCK = 16
# OpenBLAS divides larger products among threads, which wait for each other: on a busy machine several times as long.
ONE_THREAD = 2**18


def _bilinear(x: Floats) -> Floats:
    return np.where(x < 1, 1 - x, 0.0)


def _bicubic(x: Floats) -> Floats:
    near = (1.5 * x - 2.5) * x * x + 1
    far = -0.5 * (((x - 5) * x + 8) * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _lanczos(x: Floats) -> Floats:
    return np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0.0)


# The filter of a distance of at least 0, and the distance from which on it is 0.
FILTERS: dict[str, tuple[Callable[[Floats], Floats], float]] = {
    "bilinear": (_bilinear, 1.0),
    "bicubic": (_bicubic, 2.0),
    "lanczos": (_lanczos, 3.0),
}


def resize_u8(picture: Bytes, width: int, height: int, kind: str) -> Bytes:
    """A picture (H, W, C) with another size: (height, width, C)."""
    rows, columns, channels = picture.shape
    if (rows, columns) == (height, width):
        return picture
    planes = np.ascontiguousarray(picture.transpose(2, 0, 1))
    if columns != width:
        planes = _along_rows(planes.reshape(-1, columns), width, kind).reshape(channels, rows, width)
    if rows != height:
        planes = _along_columns(planes, height, kind)
    return np.ascontiguousarray(planes.transpose(1, 2, 0))


def _along_rows(lines: Bytes, length: int, kind: str) -> Bytes:
    """(R, W) -> (R, length)"""
    result = np.empty((len(lines), length), np.uint8)
    for block, read, weights, bits in _blocks(lines.shape[1], length, kind):
        for part in _parts(len(lines), weights):
            result[part, block] = _rounded(lines[part, read].astype(np.float64) @ weights.T, bits)
    return result


def _along_columns(planes: Bytes, length: int, kind: str) -> Bytes:
    """(C, H, W) -> (C, length, W)"""
    channels, rows, columns = planes.shape
    result = np.empty((channels, length, columns), np.uint8)
    for block, read, weights, bits in _blocks(rows, length, kind):
        for part in _parts(columns, weights):
            result[:, block, part] = _rounded(weights @ planes[:, read, part].astype(np.float64), bits)
    return result


def _parts(count: int, weights: Floats) -> list[slice]:
    """Parts of ``count`` rows or columns whose products one thread computes."""
    each = max(ONE_THREAD // weights.size, 1)
    return [slice(start, start + each) for start in range(0, count, each)]


def _rounded(sums: Floats, bits: int) -> Bytes:
    # Sums of integers below 2^53 are exact, in any order.
    sums += 2.0 ** (bits - 1)
    sums *= 2.0**-bits
    np.floor(sums, out=sums)
    np.clip(sums, 0, 255, out=sums)
    return sums.astype(np.uint8)


def _blocks(before: int, after: int, kind: str) -> list[tuple[slice, slice, Floats, int]]:
    """For each block of results, the pixels that it reads, and its weights (results, pixels), integers."""
    first, weights, bits = integer_weights(before, after, kind)
    blocks = []
    for start in range(0, after, BLOCK):
        stop = min(start + BLOCK, after)
        low = int(first[start])
        high = min(int(first[stop - 1]) + weights.shape[1], before)
        dense = np.zeros((stop - start, high - low))
        for row in range(start, stop):
            taps = min(weights.shape[1], before - int(first[row]))
            at = int(first[row]) - low
            dense[row - start, at : at + taps] = weights[row, :taps]
        blocks.append((slice(start, stop), slice(low, high), dense, bits))
    return blocks


def integer_weights(before: int, after: int, kind: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """The first pixel that each result reads (N,), its weights (N, taps), and their bits after the binary point."""
    function, reach = FILTERS[kind]
    scale = before / after
    wide = max(scale, 1.0)
    centers = (np.arange(after) + 0.5) * scale
    first = np.maximum(np.trunc(centers - reach * wide + 0.5), 0).astype(np.int64)
    last = np.minimum(np.trunc(centers + reach * wide + 0.5), before).astype(np.int64)
    taps = np.arange(int((last - first).max()))
    distances = (taps + (first - centers)[:, None] + 0.5) * (1.0 / wide)
    values = np.where(taps < (last - first)[:, None], function(np.abs(distances)), 0.0)
    # Added one after the other, as both languages do.
    values /= np.add.accumulate(values, axis=1)[:, -1:]
    bits, largest = 0, float(values.max())
    while bits < 22 and int(0.5 + largest * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    return first, np.trunc(values * (1 << bits) + np.where(values < 0, -0.5, 0.5)).astype(np.int64), bits
