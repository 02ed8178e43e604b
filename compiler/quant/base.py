"""The interface of quantizations: a float matrix becomes the planes that a bundle stores, and back.

A plane is one array of a packed matrix (the quantized integers, the scales). Rows are independent: row n of a plane
depends on row n of the matrix alone, so a matrix can be packed in blocks of rows and split by rows at any point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..names import GROUPS as GROUPS
from ..runtime.errors import QuantizationError

# Weights in a group. Every format pads its rows to complete groups, so kernels read all of them in chunks of this size.
GROUP = 32
# The group size of formats with one scale for each complete row.
ROW = 0

Array = npt.NDArray[np.generic]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PlaneLayout:
    """One plane of a matrix of N rows: N rows of ``columns`` elements of ``dtype``."""

    name: str
    dtype: str
    columns: int

    @property
    def row_bytes(self) -> int:
        return self.columns * np.dtype(self.dtype).itemsize


class WeightForm(Protocol):
    """The numpy meaning of one weight format, as a bundle stores it."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str:
        """The name of the layout of the weights, by which kernel templates know it; several formats may share one with
        other scales.
        """

    @property
    def group(self) -> int | None:
        """Weights along a row that share a scale, ROW if all do; None for a format without scales."""

    def planes(self, columns: int) -> tuple[PlaneLayout, ...]:
        """The planes of a matrix with ``columns`` columns."""

    def unpack(self, planes: Mapping[str, Array], columns: int) -> FloatArray:
        """Planes -> (N, columns) f32, exactly what every kernel must compute with."""


class Quantization(WeightForm, Protocol):
    """A weight format that float weights can be packed into."""

    @property
    def activations(self) -> tuple[str, ...]:
        """Activation dtypes that a bundle offers with these weights, best first: from "float16" and "float32"."""

    def pack(self, matrix: FloatArray) -> dict[str, Array]:
        """(N, K) f32 -> planes. Raises QuantizationError if a value cannot be represented."""


def require_finite(matrix: FloatArray) -> None:
    """Raise QuantizationError when the matrix holds NaN or infinity."""
    # One pass without a temporary: a sum is finite only if all its terms are, except after an overflow, which the slow
    # path detects.
    with np.errstate(invalid="ignore"):
        total = np.sum(matrix, dtype=np.float64)
    if not np.isfinite(total) and not np.isfinite(matrix).all():
        raise QuantizationError(
            "the tensor holds NaN or infinity; the checkpoint is damaged or was saved after a diverged training"
        )


def pad_columns(matrix: FloatArray, group: int = GROUP) -> FloatArray:
    """Append zero columns, so that a row is a whole number of groups."""
    missing = -matrix.shape[1] % group
    return np.pad(matrix, ((0, 0), (0, missing))) if missing else matrix


def padded_columns(columns: int, group: int = GROUP) -> int:
    return -(-columns // group) * group
