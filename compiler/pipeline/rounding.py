"""Measures the error of matrices that a bundle stores in another format than the quantized checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..formats.checkpoint import Checkpoint, DequantizedMatrix, StoredMatrix
from ..quant import Quantization
from ..runtime.errors import QuantizationError

# Rows of each matrix that are measured, from its middle.
SAMPLE_ROWS = 16


@dataclass(slots=True)
class Rounding:
    """``matrices`` that change from one format to another: the sums of squares of the changes of the measured weights,
    and of the weights themselves.
    """

    matrices: int = 0
    change: float = 0.0
    size: float = 0.0

    @property
    def relative(self) -> float:
        """The root mean square of the changes over that of the weights."""
        return float(np.sqrt(self.change / self.size)) if self.size else 0.0


def rounding_notes(checkpoint: Checkpoint, quantization: Quantization, *, keeps_forms: bool) -> Iterator[str]:
    """A sentence for each format of the checkpoint that changes. ``keeps_forms``: integers that one of our formats can
    hold stay unchanged.

    Raises QuantizationError for weights that the quantization cannot represent.
    """
    found: dict[tuple[str, str], Rounding] = {}
    for tensor in checkpoint.tensors.values():
        if not isinstance(tensor, StoredMatrix | DequantizedMatrix):
            continue
        stays = keeps_forms and isinstance(tensor, StoredMatrix)
        if isinstance(tensor, StoredMatrix) and stays and tensor.exact is None:
            continue
        rows, columns = tensor.shape
        start = max(0, (rows - SAMPLE_ROWS) // 2)
        stop = min(rows, start + SAMPLE_ROWS)
        weights = tensor.rows(start, stop)
        if isinstance(tensor, StoredMatrix) and stays:
            name, stored = tensor.form.name, tensor.form.unpack(tensor.planes(start, stop), columns)
        else:
            name = quantization.name
            try:
                stored = quantization.unpack(quantization.pack(weights), columns)
            except QuantizationError as error:
                raise QuantizationError(
                    f"{checkpoint.path}: {tensor.name}: {error.message}", tensor=tensor.name
                ) from error
        total = found.setdefault((tensor.dtype, name), Rounding())
        total.matrices += 1
        total.change += float(np.sum(np.square(stored - weights, dtype=np.float64)))
        total.size += float(np.sum(np.square(weights, dtype=np.float64)))
    for (source, name), total in sorted(found.items()):
        yield (
            f"{checkpoint.path}: {total.matrices} matrices of {source} become {name}, which changes their weights by "
            f"{total.relative:.2g} of their size (root mean square of up to {SAMPLE_ROWS} rows of each)"
        )
