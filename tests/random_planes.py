"""Random weights in any format, as planes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nearfar.compiler.ir.ops import Array
from nearfar.compiler.quant import Codes, Products, Quantization, WeightForm
from nearfar.compiler.quant.codes import units_of


def random_planes(form: WeightForm, rng: np.random.Generator, rows: int, columns: int) -> Mapping[str, Array]:
    """The planes of a matrix that preserves the magnitude of its inputs; integers of a checkpoint use all codes."""
    if isinstance(form, Codes):
        codes = rng.integers(0, 1 << form.bits, (rows, columns)).astype(np.uint8)
        size = rows, form.scales_of(columns)
        if form.scale == "int8":
            size_of_units = rows, units_of(columns)
            units = (rng.uniform(0.5, 1.5, size_of_units) / (100 * form.zero * np.sqrt(columns))).astype(np.float16)
            integers = rng.integers(-127, 128, size).astype(np.int8)
            return form.store(codes, Products(integers, units), Products(-integers, units * np.float16(form.zero)))
        scales = (rng.uniform(0.5, 1.5, size) / (form.zero * np.sqrt(columns))).astype(form.scale)
        zeros = rng.integers(0, (1 << form.bits) + 1, size) if form.offset == "z" else scales * -form.zero
        return form.store(codes, scales, zeros.astype(form.scale))
    quantization: Quantization = form  # type: ignore[assignment]
    return quantization.pack((rng.normal(size=(rows, columns)) / np.sqrt(columns)).astype(np.float32))
