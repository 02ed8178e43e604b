"""ScaleGrid: the scales of a matrix, each of which belongs to a block of rows and columns; and matrices of 8-bit floats
with such scales.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ir.e4m3 import VALUES as E4M3_VALUES
from ..quant.base import FloatArray
from ..runtime.errors import CheckpointError
from .checkpoint import DequantizedMatrix
from .safetensors_file import SafetensorsTensor
from .small_floats import powers_of_two

# The number of rows or columns of a block that covers all of them.
WHOLE = 0
FLOATS = ("F32", "F16", "BF16")
# Powers of two.
EXPONENTS = ("U8", "F8_E8M0")
FLOAT8 = "F8_E4M3"


@dataclass(frozen=True, slots=True)
class ScaleGrid:
    """The scales, or the zero points, of a matrix of ``shape`` (N, K) whose blocks have ``block`` rows and columns."""

    tensor: SafetensorsTensor
    shape: tuple[int, int]
    block: tuple[int, int]

    @staticmethod
    def of(
        tensor: SafetensorsTensor, shape: tuple[int, int], block: tuple[int, int], dtypes: tuple[str, ...], where: str
    ) -> ScaleGrid:
        """Raises CheckpointError unless the tensor has one value for each block, and one of the dtypes."""
        grid = ScaleGrid(tensor, shape, (block[0] or max(shape[0], 1), block[1] or max(shape[1], 1)))
        rows, columns = grid.size
        # A single column and a single value may be stored with fewer axes.
        allowed = [(rows, columns)] + [(rows,)] * (columns == 1) + [()] * (rows == columns == 1)
        if tensor.shape not in allowed or tensor.dtype not in dtypes:
            raise CheckpointError(
                f"{tensor.path}: tensor {tensor.name} has dtype {tensor.dtype} and shape {list(tensor.shape)}; "
                f"expected {' or '.join(dtypes)} of {list(allowed[0])} for a matrix of {list(shape)} ({where}); "
                "download the checkpoint again",
                tensor=tensor.name,
            )
        return grid

    @property
    def size(self) -> tuple[int, int]:
        """The number of blocks in a column and in a row of the matrix."""
        return -(-self.shape[0] // self.block[0]), -(-self.shape[1] // self.block[1])

    def rows(self, start: int, stop: int) -> FloatArray:
        """The values (stop - start, C) of rows of the matrix, one for each block of columns."""
        height = self.block[0]
        first, last = start // height, -(-stop // height)
        values = self._read(first, last).reshape(last - first, -1)
        return values if height == 1 else values[np.arange(start, stop) // height - first]

    def of_columns(self, values: FloatArray) -> FloatArray:
        """The values of `rows` for each column: (n, K), or (n, 1) if the columns share them."""
        if values.shape[1] == 1:
            return values
        return np.repeat(values, self.block[1], axis=1)[:, : self.shape[1]]

    def _read(self, first: int, last: int) -> FloatArray:
        if self.tensor.dtype in FLOATS:
            return self.tensor.rows(first, last)
        stored = self.tensor.integers(first, last)
        if self.tensor.dtype in EXPONENTS:
            return powers_of_two(stored)
        values: FloatArray = E4M3_VALUES[stored] if self.tensor.dtype == FLOAT8 else stored.astype(np.float32)
        return values


def float8_matrix(name: str, weight: SafetensorsTensor, scales: ScaleGrid) -> DequantizedMatrix:
    """A matrix (N, K) of FLOAT8, in which each value is multiplied by its scale."""

    def rows(start: int, stop: int) -> FloatArray:
        values: FloatArray = E4M3_VALUES[weight.integers(start, stop)]
        # Values that are not finite are detected when they are packed.
        with np.errstate(invalid="ignore", over="ignore"):
            values *= scales.of_columns(scales.rows(start, stop))
        return values

    return DequantizedMatrix(name, scales.shape, FLOAT8, rows)


def float8_note(where: str, count: int) -> str:
    return (
        f"{where}: {count} matrices of 8-bit floats become float16, twice their size; add --requantize with "
        "--quantization q8f16 to round them to 8 bits again"
    )
