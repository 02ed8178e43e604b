"""Tensors of a GGUF file under their names in a Hugging Face checkpoint, with its order of rows and its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from ...quant import Products
from ...quant.base import Array
from ...runtime.errors import QuantizationError
from ..checkpoint import StoredMatrix, Tensor
from .block_types import BlockType
from .container import StoredTensor

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Interleaved:
    """The rows of heads whose elements i and i + D/2 are rotated together. The file stores them in the order 0, D/2, 1,
    D/2 + 1 and so on.
    """

    head_dim: int

    def in_file(self, rows: Rows) -> Rows:
        """The indices in the file of rows of the checkpoint."""
        head, element = np.divmod(rows, self.head_dim)
        part, pair = np.divmod(element, self.head_dim // 2)
        places: Rows = head * self.head_dim + 2 * pair + part
        return places

    def in_checkpoint(self, rows: Rows) -> Rows:
        """Where rows of the file are in the checkpoint."""
        head, element = np.divmod(rows, self.head_dim)
        pair, part = np.divmod(element, 2)
        places: Rows = head * self.head_dim + part * (self.head_dim // 2) + pair
        return places


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor whose elements are read as floats. ``shift`` is added to them."""

    name: str
    stored: StoredTensor
    order: Interleaved | None = None
    shift: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    @property
    def dtype(self) -> str:
        return self.stored.type.name

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        if not 0 <= start <= stop <= self.shape[0]:
            raise IndexError(f"rows {start} to {stop} of tensor {self.name!r}, which has {self.shape[0]}")
        rows = np.arange(start, stop)
        if self.order is not None:
            rows = self.order.in_file(rows)
        if len(self.shape) == 1:
            values = read_floats(self.stored, np.arange(1)).reshape(-1)[rows]
        else:
            inner = int(np.prod(self.shape[1:-1], dtype=np.int64))
            rows = (rows[:, None] * inner + np.arange(inner)).reshape(-1)
            values = read_floats(self.stored, rows).reshape(stop - start, *self.shape[1:])
        return np.ascontiguousarray(values + np.float32(self.shift) if self.shift else values)


def as_tensor(name: str, stored: StoredTensor, order: Interleaved | None = None, shift: float = 0.0) -> Tensor:
    """Codes stay unchanged; all other types become floats."""
    form = stored.type.form
    if form is None or len(stored.shape) != 2 or shift:
        return GgufTensor(name, stored, order, shift)
    rows, columns = stored.shape
    return StoredMatrix(name, (rows, columns), form, partial(read_planes, name, stored, order))


def read_planes(
    name: str, stored: StoredTensor, order: Interleaved | None, start: int, stop: int
) -> Mapping[str, Array]:
    """The planes of rows [start, stop) of a matrix of codes. Raises QuantizationError for an infinite scale."""
    rows = np.arange(start, stop)
    data = stored.read_rows(rows if order is None else order.in_file(rows))
    try:
        return planes_of(stored.type, data.reshape(len(data), -1, stored.type.bytes))
    except QuantizationError as error:
        raise QuantizationError(f"{stored.path}: {name}: {error.message}", tensor=name) from error


def read_floats(stored: StoredTensor, rows: Rows) -> npt.NDArray[np.float32]:
    """Rows of the last axis as floats."""
    kind = stored.type
    data = stored.read_rows(rows)
    blocks = data.reshape(len(data), -1, kind.bytes)
    if kind.floats is not None:
        return kind.floats(blocks).reshape(len(data), -1)
    assert kind.form is not None
    return kind.form.unpack(planes_of(kind, blocks), stored.shape[-1])


def planes_of(kind: BlockType, blocks: npt.NDArray[np.uint8]) -> Mapping[str, Array]:
    """The planes of rows of blocks (n, B, bytes). Raises QuantizationError for an infinite scale."""
    assert kind.form is not None
    assert kind.unpack is not None
    codes, scales, biases = kind.unpack(blocks)

    def flat(factors: Array | Products) -> Array | Products:
        if isinstance(factors, Products):
            return Products(*(each.reshape(len(blocks), -1) for each in (factors.integers, factors.units)))
        return factors.reshape(len(blocks), -1)

    return kind.form.store(codes.reshape(len(blocks), -1), flat(scales), None if biases is None else flat(biases))
