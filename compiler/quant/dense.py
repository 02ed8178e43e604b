"""Weights that are not quantized: one plane ``w`` of float16 or float32, rows padded with zeros to whole groups of
32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..runtime.errors import QuantizationError
from .base import Array, FloatArray, PlaneLayout, pad_columns, padded_columns, require_finite


@dataclass(frozen=True, slots=True)
class Dense:
    name: str
    dtype: str
    activations: tuple[str, ...]

    @property
    def kind(self) -> str:
        return self.name

    @property
    def group(self) -> None:
        return None

    def planes(self, columns: int) -> tuple[PlaneLayout, ...]:
        return (PlaneLayout("w", self.dtype, padded_columns(columns)),)

    def pack(self, matrix: FloatArray) -> dict[str, Array]:
        require_finite(matrix)
        if self.dtype == "float16" and np.abs(matrix).max(initial=0) > np.finfo(np.float16).max:
            raise QuantizationError("weights exceed f16's largest value, 65504; use --quantization f32")
        return {"w": pad_columns(matrix).astype(self.dtype)}

    def unpack(self, planes: Mapping[str, Array], columns: int) -> FloatArray:
        return planes["w"][:, :columns].astype(np.float32)
