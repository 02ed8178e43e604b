"""Tensors of the protocol: named arrays with a datatype, as JSON or as bytes.

Source: the Open Inference Protocol, "Tensor Data", and Triton's extension "Binary tensor data". Elements of BYTES have
a length of 4 bytes before them. Numbers are little-endian and row-major.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.compiler.runtime.errors import RequestError

from ..text.json_structure import MAX_PARTS

DTYPES: dict[str, np.dtype[Any]] = {"INT32": np.dtype("<i4"), "INT64": np.dtype("<i8"), "FP32": np.dtype("<f4")}
MAX_DIMS = 8


@dataclass(frozen=True, slots=True)
class Tensor:
    """``data`` is a flat list of bytes for BYTES, and otherwise an array of ``shape``."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[bytes] | npt.NDArray[Any]

    @staticmethod
    def of(name: str, array: npt.NDArray[np.float32]) -> Tensor:
        return Tensor(name, "FP32", array.shape, array)

    def to_bytes(self) -> bytes:
        assert not isinstance(self.data, list)
        return np.ascontiguousarray(self.data, DTYPES[self.datatype]).tobytes()


def num_elements(name: str, shape: Sequence[int]) -> int:
    """Raises RequestError for a shape that no tensor has."""
    if not 0 < len(shape) <= MAX_DIMS or any(size < 0 for size in shape):
        raise RequestError(f"input {name!r}: shape {list(shape)[:MAX_DIMS]} is not valid", param=name)
    return math.prod(shape)


def from_bytes(name: str, datatype: str, shape: Sequence[int], raw: bytes) -> Tensor:
    """Raises RequestError for another datatype, or if the bytes are not those of the shape."""
    count = num_elements(name, shape)
    if datatype == "BYTES":
        if count > MAX_PARTS:
            raise RequestError(f"input {name!r}: {count} elements of BYTES; send at most {MAX_PARTS:,}", param=name)
        texts, at = list[bytes](), 0
        while at + 4 <= len(raw) and len(texts) < count:
            (size,) = struct.unpack_from("<I", raw, at)
            texts.append(raw[at + 4 : at + 4 + size])
            at += 4 + size
        if at != len(raw) or len(texts) != count:
            raise RequestError(
                f"input {name!r}: {len(raw)} bytes are not {count} elements of BYTES, each with its length", param=name
            )
        return Tensor(name, datatype, tuple(shape), texts)
    dtype = _dtype(name, datatype)
    if len(raw) != count * dtype.itemsize:
        raise RequestError(
            f"input {name!r}: {len(raw)} bytes; shape {list(shape)} of {datatype} has {count * dtype.itemsize}",
            param=name,
        )
    return Tensor(name, datatype, tuple(shape), np.frombuffer(raw, dtype).reshape(shape))


def from_values(name: str, datatype: str, shape: Sequence[int], values: Sequence[Any]) -> Tensor:
    """A tensor of a flat list. Raises RequestError for another datatype, count or type of the values."""
    count = num_elements(name, shape)
    if len(values) != count:
        raise RequestError(f"input {name!r}: {len(values)} elements; shape {list(shape)} has {count}", param=name)
    if datatype == "BYTES":
        if not all(isinstance(value, str | bytes) for value in values):
            raise RequestError(f"input {name!r}: BYTES must be strings", param=name)
        texts = [value.encode() if isinstance(value, str) else value for value in values]
        return Tensor(name, datatype, tuple(shape), texts)
    dtype = _dtype(name, datatype)
    kinds = {int} if dtype.kind == "i" else {int, float}
    if not set(map(type, values)) <= kinds:
        raise RequestError(f"input {name!r}: {datatype} must be numbers", param=name)
    try:
        array = np.array(values, dtype).reshape(shape)
    except OverflowError:
        raise RequestError(f"input {name!r}: a number does not fit {datatype}", param=name) from None
    return Tensor(name, datatype, tuple(shape), array)


def flattened(name: str, values: Any, depth: int = 0) -> list[Any]:
    """The elements of nested lists, as JSON may have them. Raises RequestError."""
    if not isinstance(values, list) or depth > MAX_DIMS:
        raise RequestError(f"input {name!r}: data must be a list", param=name)
    if values and isinstance(values[0], list):
        return [element for part in values for element in flattened(name, part, depth + 1)]
    return values


def _dtype(name: str, datatype: str) -> np.dtype[Any]:
    if datatype not in DTYPES:
        raise RequestError(
            f"input {name!r}: datatype {datatype[:20]!r} is not supported; use BYTES, INT32 or INT64", param=name
        )
    return DTYPES[datatype]
