"""8-bit weights in groups along a row (32 in a plan), with one scale per group: w = (q - 128) * scale, q in 1..255.

The scale is the group's largest magnitude over 127 (the scheme of ggml's Q8_0, with an offset so that the bytes are
unsigned). Planes:

    q  (N, K/4)  uint32: byte b holds element b.
    s  (N, K/group) float16 or float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .base import GROUP, Array, FloatArray, PlaneLayout, pad_columns, padded_columns, require_finite
from .q4 import to_scale


@dataclass(frozen=True, slots=True)
class Q8:
    name: str
    scale_dtype: str
    activations: tuple[str, ...]
    kind: str = "q8"
    group: int = GROUP

    def planes(self, columns: int) -> tuple[PlaneLayout, ...]:
        padded = padded_columns(columns, self.group)
        return PlaneLayout("q", "uint32", padded // 4), PlaneLayout("s", self.scale_dtype, padded // self.group)

    def pack(self, matrix: FloatArray) -> dict[str, Array]:
        require_finite(matrix)
        padded = pad_columns(matrix, self.group)
        groups = padded.reshape(-1, padded.shape[1] // self.group, self.group)
        largest = np.maximum(groups.max(axis=-1), -groups.min(axis=-1))
        scale = to_scale(largest / np.float32(127), self.scale_dtype)
        inverse = np.zeros(scale.shape, np.float32)
        np.divide(1, scale, out=inverse, where=scale != 0, dtype=np.float32)
        codes = groups * inverse[..., None]
        codes += np.float32(128.5)  # Truncation below then rounds to nearest; halves go up.
        np.clip(codes, 1, 255, out=codes)
        return {"q": codes.astype(np.uint8).reshape(len(matrix), -1).view(np.uint32), "s": scale}

    def unpack(self, planes: Mapping[str, Array], columns: int) -> FloatArray:
        codes = np.ascontiguousarray(planes["q"]).view(np.uint8)
        groups = codes.reshape(len(codes), -1, self.group).astype(np.float32)
        weights = (groups - np.float32(128)) * planes["s"].astype(np.float32)[..., None]
        return weights.reshape(len(codes), -1)[:, :columns]
