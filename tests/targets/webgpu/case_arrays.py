"""Shared by the cases of all kernels: sizes, weight formats, and arrays that reveal elements that a kernel does not
write.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np

from nearfar.compiler.ir.ops import Array
from nearfar.compiler.kernels.packed import WeightFormat
from nearfar.compiler.quant import ROW

EPS = 1e-6
# One row, a few, and one past a tile of 32.
BATCHES = (1, 3, 33)
# Weight formats by the quantization that packs them.
FORMATS = {
    "q4f16": WeightFormat("q4", "float16"),
    "q4f32": WeightFormat("q4", "float32"),
    "q8f16": WeightFormat("q8", "float16"),
    "f16": WeightFormat("f16", ""),
    "f32": WeightFormat("f32", ""),
}

# The formats of a checkpoint's own integers.
STORED_FORMATS = {
    "q2c": WeightFormat("q2", "float32", ROW),
    "q4c": WeightFormat("q4", "float32", ROW),
    "q8c": WeightFormat("q8", "float32", ROW),
    "q2g64": WeightFormat("q2", "float32", 64),
    "q2g16b": WeightFormat("q2", "float32", 16, "b"),
    "q3g16": WeightFormat("q3", "float32", 16),
    "q4g32b": WeightFormat("q4", "float32", 32, "b"),
    "q4g128z_f16": WeightFormat("q4", "float16", 128, "z"),
    "q5g32b_f16": WeightFormat("q5", "float16", 32, "b"),
    "q6g16": WeightFormat("q6", "float32", 16),
    "q8g16z": WeightFormat("q8", "float32", 16, "z"),
    "q8cb": WeightFormat("q8", "float32", ROW, "b"),
}
# Those of ggml's K-blocks, which CUDA's kernels do not read.
UNIT_FORMATS = {
    "q2g16b_i8": WeightFormat("q2", "int8", 16, "b"),
    "q4g32b_i8": WeightFormat("q4", "int8", 32, "b"),
    "q6g16_i8": WeightFormat("q6", "int8", 16),
}
ALL_FORMATS = {**FORMATS, **STORED_FORMATS, **UNIT_FORMATS}


def random(name: str) -> np.random.Generator:
    return np.random.default_rng(crc32(name.encode()))


def nothing(shape: tuple[int, ...], dtype: str) -> Array:
    """The output array, filled with NaN, or with -1 for integers, so that elements that a kernel does not write are
    noticed.
    """
    return np.full(shape, -1 if dtype == "int32" else np.nan, dtype)
