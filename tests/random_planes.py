"""Random weights in any format, as planes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nearfar.compiler.ir.ops import Array
from nearfar.compiler.quant import Codes, Quantization, WeightForm


def random_planes(form: WeightForm, rng: np.random.Generator, rows: int, columns: int) -> Mapping[str, Array]:
    """The planes of a matrix that preserves the magnitude of its inputs; integers of a checkpoint use all codes."""
    if isinstance(form, Codes):
        integers = rng.integers(-form.zero, form.zero, (rows, columns)).astype(np.int8)
        scales = rng.uniform(0.5, 1.5, (rows, form.planes(columns)[1].columns)) / (form.zero * np.sqrt(columns))
        return form.store(integers, scales.astype(np.float32))
    quantization: Quantization = form  # type: ignore[assignment]
    return quantization.pack((rng.normal(size=(rows, columns)) / np.sqrt(columns)).astype(np.float32))
