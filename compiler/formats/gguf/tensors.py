"""Tensors of a GGUF file under their names in a Hugging Face checkpoint, with its order of rows and its values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from ...quant import Codes, Products
from ...quant.base import Array
from ...runtime.errors import CheckpointError, QuantizationError
from ..checkpoint import DequantizedMatrix, StoredMatrix, Tensor
from .block_types import BlockType, Floats
from .container import Container, StoredTensor
from .relations import Axes, Relation, Rows

# A value of the checkpoint from the one that a file stores; see `relations.Values`.
VALUES: Mapping[str, Callable[[Floats], Floats]] = {
    "same": lambda values: values,
    "plus_one": lambda values: values - np.float32(1),
    "negative_exp": lambda values: np.log(-values),
}


@dataclass(frozen=True, slots=True)
class FileRows:
    """``count`` rows, from row ``start`` on, of the tensors of a `Relation`. ``files`` have one shape."""

    files: tuple[StoredTensor, ...]
    start: int
    count: int
    order: Axes | None = None

    @property
    def columns(self) -> int:
        return self.files[0].shape[-1]

    @property
    def type(self) -> BlockType | None:
        """The type of all files; None if they differ."""
        kinds = {file.type.name: file.type for file in self.files}
        return self.files[0].type if len(kinds) == 1 else None

    def parts(self, start: int, stop: int, size: int) -> list[tuple[StoredTensor, Rows, npt.NDArray[np.bool_]]]:
        """The files that hold rows [start, stop): their indices in files of ``size`` rows, and which rows these are."""
        rows: Rows = np.arange(self.start + start, self.start + stop)
        if self.order is not None:
            rows = self.order.in_file(rows)
        file, row = np.divmod(rows, size)
        return [
            (each, row[file == index], file == index) for index, each in enumerate(self.files) if (file == index).any()
        ]

    def read(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """The bytes (n, row_bytes) of rows [start, stop), which all files have in one type."""
        size = math.prod(self.files[0].shape[:-1])
        data = np.empty((stop - start, self.files[0].row_bytes), np.uint8)
        for file, rows, places in self.parts(start, stop, size):
            data[places] = file.read_rows(rows)
        return data


@dataclass(frozen=True, slots=True)
class GgufMatrix:
    """A matrix whose elements are read as floats."""

    name: str
    stored: FileRows
    values: str = "same"
    columns: Axes | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.stored.count, self.stored.columns

    @property
    def dtype(self) -> str:
        return self.stored.files[0].type.name

    def rows(self, start: int, stop: int) -> Floats:
        require_rows(self.name, start, stop, self.stored.count)
        size = math.prod(self.stored.files[0].shape[:-1])
        result = np.empty((stop - start, self.stored.columns), np.float32)
        for file, rows, places in self.stored.parts(start, stop, size):
            result[places] = read_floats(file, rows)
        if self.columns is not None:
            result = result[:, self.columns.in_file(np.arange(self.stored.columns))]
        return np.ascontiguousarray(VALUES[self.values](result))


@dataclass(frozen=True, slots=True)
class GgufVector:
    """A vector, whose elements the file may store with two axes."""

    name: str
    stored: FileRows
    values: str = "same"

    @property
    def shape(self) -> tuple[int]:
        return (self.stored.count,)

    @property
    def dtype(self) -> str:
        return self.stored.files[0].type.name

    def rows(self, start: int, stop: int) -> Floats:
        require_rows(self.name, start, stop, self.stored.count)
        size = math.prod(self.stored.files[0].shape)
        result = np.empty(stop - start, np.float32)
        for file, elements, places in self.stored.parts(start, stop, size):
            result[places] = read_floats(file, np.arange(size // self.stored.columns)).reshape(-1)[elements]
        return VALUES[self.values](result)


def require_rows(name: str, start: int, stop: int, count: int) -> None:
    if not 0 <= start <= stop <= count:
        raise IndexError(f"rows {start} to {stop} of tensor {name!r}, which has {count}")


def related_tensors(relation: Relation, container: Container) -> dict[str, Tensor]:
    """The checkpoint's tensors of a relation, by name. Raises CheckpointError for tensors of other shapes."""
    files = tuple(container.tensors[name] for name in relation.files)
    shape = files[0].shape
    axes = len(shape) - (relation.first is not None)
    for file in files:
        if file.shape != shape or axes not in (1, 2) or relation.first not in (None, shape[0]):
            expected = "one or two axes" if relation.first is None else f"{relation.first} in front of its axes"
            raise CheckpointError(
                f"{file.path}: tensor {file.name!r} has shape {list(file.shape)}; expected {expected}"
                + (f", as {files[0].name!r}" if files[1:] else ""),
                tensor=file.name,
            )
    rows = math.prod(shape if axes == 1 else shape[:-1]) * len(files)
    each, rest = divmod(rows, len(relation.tensors))
    if rest:
        raise CheckpointError(
            f"{files[0].path}: tensor {files[0].name!r} has {rows} rows of {len(relation.tensors)} tensors",
            tensor=files[0].name,
        )
    stored = {name: FileRows(files, index * each, each, relation.rows) for index, name in enumerate(relation.tensors)}
    if axes == 1:
        return {name: GgufVector(name, own, relation.values) for name, own in stored.items()}
    return {name: as_tensor(name, own, relation) for name, own in stored.items()}


def as_tensor(name: str, stored: FileRows, relation: Relation) -> Tensor:
    """A matrix. Codes stay unchanged; all other types become floats."""
    kind, floats = stored.type, GgufMatrix(name, stored, relation.values, relation.columns)
    if kind is None or kind.form is None or relation.values != "same":
        return floats
    form, moved = kind.form, None
    if relation.columns is not None:
        moved = relation.columns.in_file(np.arange(stored.columns))
        form = form.with_float_scales
        if not moves_groups(moved, form.group):
            return DequantizedMatrix(name, floats.shape, form.name, floats.rows)
    return StoredMatrix(name, floats.shape, form, partial(read_planes, name, kind, stored, moved))


def moves_groups(moved: Rows, group: int) -> bool:
    """Whether columns move in whole groups of neighbours."""
    if len(moved) % group:
        return False
    groups = moved.reshape(-1, group)
    return bool((groups[:, 0] % group == 0).all() and (np.diff(groups, axis=1) == 1).all())


def read_planes(
    name: str, kind: BlockType, stored: FileRows, moved: Rows | None, start: int, stop: int
) -> Mapping[str, Array]:
    """The planes of rows [start, stop) of a matrix of codes. Raises QuantizationError for an infinite scale."""
    data = stored.read(start, stop)
    blocks = data.reshape(len(data), -1, kind.bytes)
    try:
        return planes_of(kind, blocks) if moved is None else moved_planes(kind, blocks, moved)
    except QuantizationError as error:
        path = stored.files[0].path
        raise QuantizationError(f"{path}: {name}: {error.message}", tensor=name) from error


def read_floats(stored: StoredTensor, rows: Rows) -> Floats:
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


def moved_planes(kind: BlockType, blocks: npt.NDArray[np.uint8], moved: Rows) -> Mapping[str, Array]:
    """The same, whose column c is column ``moved[c]`` of the blocks, with float scales."""
    assert kind.form is not None
    assert kind.unpack is not None
    form: Codes = kind.form.with_float_scales
    groups = moved[:: form.group] // form.group

    def flat(factors: Array | Products) -> Array:
        # A block of 256 has one unit for all of its scales.
        if isinstance(factors, Products):
            factors = factors.integers.astype(np.float32) * factors.units.astype(np.float32)
        return factors.reshape(len(blocks), -1)[:, groups]

    codes, scales, biases = kind.unpack(blocks)
    columns = np.ascontiguousarray(codes.reshape(len(blocks), -1)[:, moved])
    return form.store(columns, flat(scales), None if biases is None else flat(biases))


def read_vector(stored: StoredTensor) -> Floats:
    return read_floats(stored, np.arange(1)).reshape(-1)
