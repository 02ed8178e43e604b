"""Random weights in any format, as planes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nearfar.compiler.ir.ops import Array
from nearfar.compiler.quant import Codes, Quantization, WeightForm


def random_planes(form: WeightForm, rng: np.random.Generator, rows: int, columns: int) -> Mapping[str, Array]:
    """The planes of a matrix that preserves the magnitude of its inputs; integers of a checkpoint use all codes."""
    if isinstance(form, Codes):
        codes = rng.integers(0, 1 << form.bits, (rows, columns)).astype(np.uint8)
        size = rows, form.scales_of(columns)
        scales = (rng.uniform(0.5, 1.5, size) / (form.zero * np.sqrt(columns))).astype(form.scale)
        zeros = rng.integers(0, (1 << form.bits) + 1, size) if form.offset == "z" else scales * -form.zero
        return form.store(codes, scales, zeros.astype(form.scale))
    quantization: Quantization = form  # type: ignore[assignment]
    return quantization.pack((rng.normal(size=(rows, columns)) / np.sqrt(columns)).astype(np.float32))
