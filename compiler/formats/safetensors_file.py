"""Reads .safetensors files: the checked header, then rows of tensors on demand. A file is never mapped or read
completely.

Layout: the header's length as u64 (little-endian), the header as JSON (name -> dtype, shape, data_offsets), then the
tensors' bytes without gaps or overlaps. https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from ..runtime.errors import CheckpointError, UnsupportedModel, reason_of
from .json_file import parse_json_object, reject_git_lfs_pointer
from .read_tensor import read_into

MAX_HEADER_BYTES = 100_000_000

BITS_PER_ELEMENT = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip

# The stored form of the dtypes that we read. A bf16 is the upper half of an f32.
STORED_AS: Mapping[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
# Floats of 8 bits are read as their bytes.
INTEGERS: Mapping[str, np.dtype[Any]] = {
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "I64": np.dtype("<i8"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E8M0": np.dtype("u1"),
}


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """A tensor in a .safetensors file; ``offset_bytes`` counts from the start of the file.

    Each read opens the file, so any thread may read.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    path: Path
    offset_bytes: int

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Rows start to stop of the first axis as C-contiguous f32: (stop - start, *shape[1:]). A scalar counts as one
        row.

        Raises UnsupportedModel for a dtype that is not F32, F16 or BF16, CheckpointError if the file cannot be read,
        and IndexError for rows that the tensor does not have.
        """
        stored = self._stored_rows(start, stop, STORED_AS)
        if self.dtype == "BF16":
            bits = stored.astype(np.uint32)
            bits <<= 16
            widened: npt.NDArray[np.float32] = bits.view(np.float32)
            return widened
        converted: npt.NDArray[np.float32] = stored.astype(np.float32, copy=False)
        return converted

    def integers(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows start to stop of a tensor of integers, unchanged, or the bytes of 8-bit floats. Raises the errors of
        `rows`.
        """
        return self._stored_rows(start, stop, INTEGERS)

    def columns(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Columns start to stop of a matrix (R, C): float16, float32 or integers unchanged, bfloat16 as float32. Raises
        the errors of `rows`.
        """
        rows, columns = self.shape
        if not 0 <= start <= stop <= columns:
            raise IndexError(f"columns {start} to {stop} of tensor {self.name!r}, which has {columns}")
        if (start, stop) == (0, columns) or self.dtype not in INTEGERS:
            whole = self.integers(0, rows) if self.dtype in INTEGERS else self.rows(0, rows)
            return whole[:, start:stop]
        item = INTEGERS[self.dtype]
        part = np.empty((rows, stop - start), item)
        for row in range(rows):
            read_into(part[row], self.path, self.offset_bytes + (row * columns + start) * item.itemsize, self.name)
        return part

    def _stored_rows(self, start: int, stop: int, supported: Mapping[str, np.dtype[Any]]) -> npt.NDArray[Any]:
        row_count, *row_shape = self.shape or (1,)
        if not 0 <= start <= stop <= row_count:
            raise IndexError(f"rows {start} to {stop} of tensor {self.name!r}, which has {row_count}")
        if self.dtype not in supported:
            raise UnsupportedModel(
                f"{self.path}: tensor {self.name!r} has dtype {self.dtype}, which is not supported; "
                f"supported: {', '.join(supported)}",
                file=str(self.path),
                tensor=self.name,
            )
        stored = np.empty((stop - start, *row_shape), supported[self.dtype])
        row_bytes = math.prod(row_shape) * stored.itemsize
        read_into(stored, self.path, self.offset_bytes + start * row_bytes, self.name)
        return stored


def read_safetensors(path: Path) -> dict[str, SafetensorsTensor]:
    """The tensors of a file by name, in the order of their bytes. Reads only the header.

    Raises CheckpointError unless the header is valid and accounts for every byte of the file.
    """
    header, data_start, data_bytes = _read_header(path)
    header.pop("__metadata__", None)
    entries = sorted((*_parse_entry(path, name, entry), name) for name, entry in header.items())
    tensors: dict[str, SafetensorsTensor] = {}
    position = 0
    for start, stop, dtype, shape, name in entries:
        if start != position:
            raise _corrupt(path, f"tensor {name!r} starts at byte {start} of the data, but byte {position} is expected")
        position = stop
        tensors[name] = SafetensorsTensor(name, shape, dtype, path, data_start + start)
    if position > data_bytes:
        raise CheckpointError(
            f"{path}: the file is truncated: according to its header it has {data_start + position} bytes, "
            f"but it has {data_start + data_bytes}; download it again",
            file=str(path),
        )
    if position < data_bytes:
        raise _corrupt(
            path,
            f"according to its header it has {data_start + position} bytes, but it has {data_start + data_bytes}",
        )
    return tensors


def read_metadata(path: Path) -> dict[str, str]:
    """The texts of a file's header beside those of its tensors. Raises CheckpointError."""
    metadata = _read_header(path)[0].get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _corrupt(path, "'__metadata__' must map names to texts")
    return metadata


def _read_header(path: Path) -> tuple[dict[str, Any], int, int]:
    """The header's JSON, the offset of the data, and the number of bytes of data."""
    try:
        with path.open("rb") as file:
            file_bytes = file.seek(0, 2)
            file.seek(0)
            head = file.read(8)
            reject_git_lfs_pointer(head + file.read(64), str(path))
            header_bytes = int.from_bytes(head, "little")
            if len(head) < 8:
                raise _corrupt(path, f"the file has {file_bytes} bytes, fewer than the 8 bytes of the header's length")
            if header_bytes > MAX_HEADER_BYTES:
                raise _corrupt(path, f"not a safetensors file: its first 8 bytes give a header of {header_bytes} bytes")
            if 8 + header_bytes > file_bytes:
                raise CheckpointError(
                    f"{path}: the file is truncated: its header alone has {8 + header_bytes} bytes, the file has "
                    f"{file_bytes}; "
                    "download it again",
                    file=str(path),
                )
            file.seek(8)
            header = file.read(header_bytes)
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read: {reason_of(error)}; download it again", file=str(path)
        ) from error
    return parse_json_object(header, f"{path}: header"), 8 + header_bytes, file_bytes - 8 - header_bytes


def _parse_entry(path: Path, name: str, entry: object) -> tuple[int, int, str, tuple[int, ...]]:
    """(start, stop, dtype, shape) of one tensor, with start and stop in bytes from the start of the data."""
    if not isinstance(entry, Mapping) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _corrupt(path, f"tensor {name!r} must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS_PER_ELEMENT:
        raise _corrupt(path, f"tensor {name!r} has unknown dtype {dtype!r}")
    # numpy supports at most 64 axes, and counts bytes in 63 bits even if another axis is zero.
    if not _are_counts(shape) or len(shape) > 32 or math.prod(size for size in shape if size) >= 2**58:
        raise _corrupt(path, f"tensor {name!r} has shape {shape!r}, expected a list of sizes")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _corrupt(path, f"tensor {name!r} has data_offsets {offsets!r}, expected [start, stop]")
    start, stop = offsets
    bits = math.prod(shape) * BITS_PER_ELEMENT[dtype]
    if bits != (stop - start) * 8:
        actual = stop - start
        raise _corrupt(
            path,
            f"tensor {name!r} of dtype {dtype} and shape {shape} takes {bits / 8:g} bytes, data_offsets give {actual}",
        )
    return start, stop, dtype, tuple(shape)


def _are_counts(values: object) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(
        isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values
    )


def _corrupt(path: Path, message: str) -> CheckpointError:
    return CheckpointError(f"{path}: {message}; the file is corrupt, download it again", file=str(path))
