"""4-bit weights in groups along a row (32 in a plan), with one scale per group: w = (q - 8) * scale, q in 0..15.

The scale is the group's value of largest magnitude over -8, so that value is represented exactly and all 16 codes are
used (the scheme of ggml's Q4_0). Planes:

    q  (N, K/8)  uint32: byte b holds element b in its low nibble and element b + 4 in its high one, so that
                 ``u & 0x0F0F0F0F`` and ``(u >> 4) & 0x0F0F0F0F`` are each four consecutive elements.
    s  (N, K/group) float16 or float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..runtime.errors import QuantizationError
from .base import GROUP, Array, FloatArray, PlaneLayout, pad_columns, padded_columns, require_finite

# Below these a GPU may flush a scale to zero.
SMALLEST_NORMAL = {"float16": 2.0**-14, "float32": 2.0**-126}


@dataclass(frozen=True, slots=True)
class Q4:
    name: str
    scale_dtype: str
    activations: tuple[str, ...]
    kind: str = "q4"
    group: int = GROUP

    def planes(self, columns: int) -> tuple[PlaneLayout, ...]:
        padded = padded_columns(columns, self.group)
        return PlaneLayout("q", "uint32", padded // 8), PlaneLayout("s", self.scale_dtype, padded // self.group)

    def pack(self, matrix: FloatArray) -> dict[str, Array]:
        require_finite(matrix)
        padded = pad_columns(matrix, self.group)
        groups = padded.reshape(-1, padded.shape[1] // self.group, self.group)
        highest, lowest = groups.max(axis=-1), groups.min(axis=-1)
        scale = to_scale(np.where(highest > -lowest, highest, lowest) / np.float32(-8), self.scale_dtype)
        inverse = np.zeros(scale.shape, np.float32)
        np.divide(1, scale, out=inverse, where=scale != 0, dtype=np.float32)
        codes = groups * inverse[..., None]
        codes += np.float32(8.5)  # Truncation below then rounds to nearest; halves go up.
        np.clip(codes, 0, 15, out=codes)
        nibbles = codes.astype(np.uint8).reshape(len(matrix), -1, 8)
        packed = nibbles[..., 4:] << 4
        packed |= nibbles[..., :4]
        return {"q": packed.view(np.uint32).reshape(len(matrix), -1), "s": scale}

    def unpack(self, planes: Mapping[str, Array], columns: int) -> FloatArray:
        packed = np.ascontiguousarray(planes["q"]).view(np.uint8)
        rows = len(packed)
        packed = packed.reshape(rows, -1, 4)
        codes = np.concatenate([packed & 15, packed >> 4], axis=-1).reshape(rows, -1, self.group).astype(np.float32)
        weights = (codes - np.float32(8)) * planes["s"].astype(np.float32)[..., None]
        return weights.reshape(rows, -1)[:, :columns]


def to_scale(scale: FloatArray, dtype: str) -> Array:
    """Scales in their stored dtype: never a number that a GPU may flush to zero, never infinite."""
    if dtype == "float16" and np.abs(scale).max(initial=0) > np.finfo(np.float16).max:
        raise QuantizationError("weights are too large for f16 scales; use --quantization q4f32 or f32")
    smallest = np.float32(SMALLEST_NORMAL[dtype])
    tiny = (scale != 0) & (np.abs(scale) < smallest)
    return np.where(tiny, np.copysign(smallest, scale), scale).astype(dtype)
