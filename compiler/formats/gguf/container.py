"""Reads the container of a GGUF file: metadata by key, and the offset of each tensor. Tensors are read on demand.

Layout, little-endian: "GGUF", version u32, number of tensors u64, number of keys u64; for each key its name, a type and
the value; for each tensor its name, dimensions (the fastest first), type and offset; padding to the alignment; then the
tensors' bytes, each padded to the alignment. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.errors import CheckpointError, UnsupportedModel, reason_of
from ..json_file import reject_git_lfs_pointer
from ..read_tensor import read_into
from .block_types import BlockType
from .table_types import TYPES, has_tables

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# Far more than any model has. The count in a damaged file must not cause a large allocation.
MAX_KEYS, MAX_TENSORS, MAX_ITEMS, MAX_AXES = 1 << 16, 1 << 17, 1 << 24, 4
MAX_NAME_BYTES, MAX_TEXT_BYTES = 1 << 10, 1 << 24
DEFAULT_ALIGNMENT = 32
# Types of values, by their numbers.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9

Value = Any


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """``shape`` as in PyTorch, the slowest axis first; ``offset_bytes`` from the start of the file ``path``."""

    name: str
    shape: tuple[int, ...]
    type: BlockType
    path: Path
    offset_bytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of the last axis."""
        return self.shape[-1] // self.type.elements * self.type.bytes

    def read_rows(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes (n, row_bytes) of rows of a matrix, or of a vector's one row, in the order of ``rows``. Any thread
        may read. Raises CheckpointError.
        """
        if not len(rows):
            return np.empty((0, self.row_bytes), np.uint8)
        first, last = int(rows.min()), int(rows.max()) + 1
        data = np.empty((last - first, self.row_bytes), np.uint8)
        read_into(data, self.path, self.offset_bytes + first * self.row_bytes, self.name)
        return data if last - first == len(rows) and (np.diff(rows) == 1).all() else data[rows - first]


@dataclass(frozen=True, slots=True)
class Container:
    """``metadata``: numbers, texts, lists of texts and numpy arrays by key."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, StoredTensor]


def read_container(path: Path) -> Container:
    """Raises CheckpointError for a file that is not GGUF, or is damaged or truncated, and UnsupportedModel for an
    unknown type of tensors.
    """
    try:
        with path.open("rb") as file:
            return _Reader(path, file).container()
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read: {reason_of(error)}; download it again", file=str(path)
        ) from error


class _Reader:
    def __init__(self, path: Path, file: BufferedReader) -> None:
        self._path, self._file = path, file
        self._size = file.seek(0, 2)
        file.seek(0)

    def container(self) -> Container:
        head = self._file.read(100)
        reject_git_lfs_pointer(head, str(self._path))
        self._file.seek(0)
        if self._take(4) != MAGIC:
            raise _bad(self._path, "is not a GGUF file: it does not begin with 'GGUF'")
        version = self._number("I")
        if version not in VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
                raise _bad(
                    self._path, "is a big-endian GGUF file, which is not supported; convert it again on x86 or Arm"
                )
            raise _bad(self._path, f"has version {version} of GGUF; supported: {', '.join(map(str, VERSIONS))}")
        num_tensors = self._count("tensors", MAX_TENSORS, 24)
        num_keys = self._count("keys", MAX_KEYS, 13)
        metadata: dict[str, Value] = {}
        for _ in range(num_keys):
            key = self._text("a key", MAX_NAME_BYTES)
            if key in metadata:
                raise self._corrupt(f"key {key!r} appears twice")
            metadata[key] = self._value(key, self._number("I"))
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self._corrupt(f"'general.alignment' is {alignment!r}, expected a power of two")
        infos = [self._tensor_info() for _ in range(num_tensors)]
        start = -(-self._file.tell() // alignment) * alignment
        return Container(self._path, metadata, self._place(infos, start, alignment))

    def _place(
        self, infos: list[tuple[str, tuple[int, ...], BlockType, int]], start: int, alignment: int
    ) -> dict[str, StoredTensor]:
        """Raises unless each tensor begins at the end of the previous one, which detects a different size of a type."""
        tensors: dict[str, StoredTensor] = {}
        expected = 0
        placed = sorted(infos, key=lambda info: info[3])
        ends = [*(info[3] for info in placed[1:]), self._size - start]
        # A file of a vocabulary has no tensors.
        for (name, shape, stated, offset), end in zip(placed, ends, strict=False):
            if name in tensors:
                raise self._corrupt(f"tensor {name!r} appears twice")
            kind = stated if stated.other is None else self._kind_of_size(name, shape, stated, end - offset, alignment)
            if offset != expected:
                raise self._corrupt(
                    f"tensor {name!r} of type {kind.name} begins at byte {offset} of the data, but byte {expected} is "
                    "expected; a type may have another block size here"
                )
            tensors[name] = StoredTensor(name, shape, kind, self._path, start + offset)
            size = math.prod(shape) // kind.elements * kind.bytes
            if start + offset + size > self._size:
                raise CheckpointError(
                    f"{self._path}: the file is truncated: tensor {name!r} ends at byte {start + offset + size}, but "
                    f"the file has {self._size}; download it again",
                    file=str(self._path), tensor=name,
                )  # fmt: skip
            expected = -(-(offset + size) // alignment) * alignment
        return tensors

    def _kind_of_size(
        self, name: str, shape: tuple[int, ...], stated: BlockType, room: int, alignment: int
    ) -> BlockType:
        """Which of two types with one number a tensor has, by its bytes and the padding behind them."""
        kinds = [kind for kind in (stated, stated.other) if kind is not None and shape[-1] % kind.elements == 0]
        sizes = [math.prod(shape) // kind.elements * kind.bytes for kind in kinds]
        fitting = [kind for kind, size in zip(kinds, sizes, strict=True) if 0 <= room - size < alignment]
        if len(fitting) != 1:
            raise UnsupportedModel(
                f"{self._path}: tensor {name!r} has type {stated.name}, which stands for different blocks in different "
                f"versions of llama.cpp, and its {room} bytes do not show which one; convert the model again, to "
                "another type",
                file=str(self._path), tensor=name,
            )  # fmt: skip
        return fitting[0]

    def _tensor_info(self) -> tuple[str, tuple[int, ...], BlockType, int]:
        name = self._text("a tensor's name", MAX_NAME_BYTES)
        axes = self._number("I")
        if not 1 <= axes <= MAX_AXES:
            raise self._corrupt(f"tensor {name!r} has {axes} axes")
        shape = tuple(reversed([self._number("Q") for _ in range(axes)]))
        number, offset = self._number("I"), self._number("Q")
        kind = TYPES.get(number)
        if kind is None:
            raise UnsupportedModel(
                f"{self._path}: tensor {name!r} has type {number}, which is not known; known: "
                f"{', '.join(sorted(each.name for each in TYPES.values()))}",
                file=str(self._path), tensor=name,
            )  # fmt: skip
        if kind.needs_tables and not has_tables():
            raise UnsupportedModel(
                f"{self._path}: tensor {name!r} has type {kind.name}, whose tables need a package: pip install "
                "'nearfar[gguf]'",
                file=str(self._path), tensor=name,
            )  # fmt: skip
        if 0 in shape or math.prod(shape) >= 2**48 or shape[-1] % kind.elements:
            raise self._corrupt(
                f"tensor {name!r} has shape {list(shape)}, expected rows of whole blocks of {kind.elements}"
            )
        return name, shape, kind, offset

    # --- values ---

    def _value(self, key: str, kind: int) -> Value:
        if kind in NUMBERS:
            return self._number(NUMBERS[kind])
        if kind == TEXT:
            return self._text(f"the value of {key!r}", MAX_TEXT_BYTES)
        if kind != ARRAY:
            raise self._corrupt(f"key {key!r} has a value of type {kind}, which does not exist")
        item = self._number("I")
        if item == TEXT:
            return [self._text(f"an item of {key!r}", MAX_TEXT_BYTES) for _ in range(self._items(key, 8))]
        if item not in NUMBERS:
            raise self._corrupt(f"key {key!r} has an array of values of type {item}")
        dtype = np.dtype(NUMBERS[item]).newbyteorder("<")
        return np.frombuffer(self._take(self._items(key, dtype.itemsize) * dtype.itemsize), dtype)

    def _items(self, key: str, least_bytes: int) -> int:
        return self._count(f"items of {key!r}", MAX_ITEMS, least_bytes)

    def _count(self, what: str, most: int, least_bytes: int) -> int:
        """A count of elements that take at least ``least_bytes`` each."""
        count: int = self._number("Q")
        if count > most or count * least_bytes > self._size - self._file.tell():
            raise self._corrupt(f"it claims to have {count} {what}, more than fit")
        return count

    def _text(self, what: str, most: int) -> str:
        size = self._number("Q")
        if size > most:
            raise self._corrupt(f"{what} has {size} bytes")
        try:
            return self._take(size).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._corrupt(f"{what} is not UTF-8") from error

    def _number(self, code: str) -> Any:
        (value,) = struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}")))
        return value

    def _take(self, size: int) -> bytes:
        if size > self._size - self._file.tell():
            raise CheckpointError(
                f"{self._path}: the file is truncated: it ends at byte {self._size}, inside its header; download it "
                "again",
                file=str(self._path),
            )
        return self._file.read(size)

    def _corrupt(self, message: str) -> CheckpointError:
        return _bad(self._path, f"{message}; the file is corrupt, download it again")


def _bad(path: Path, message: str) -> CheckpointError:
    return CheckpointError(f"{path}: {message}", file=str(path))
