"""Writes the container of a GGUF file; `container.py` describes the layout and reads it. Tensors are written a block of
rows at a time.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .block_types import BLOCK_TYPES
from .container import ARRAY, DEFAULT_ALIGNMENT, MAGIC, NUMBERS, TEXT, VERSIONS

# Elements of a block of rows, which is in memory at once.
BLOCK_ELEMENTS = 2 << 20
NUMBER_OF = {kind.name: number for number, kind in BLOCK_TYPES.items()}
_KINDS = {np.dtype(code): number for number, code in NUMBERS.items()}

Value = str | bool | int | float | Sequence[str] | npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor of a type of BLOCK_TYPES. ``rows(start, stop)`` gives the bytes of rows of its last axis, or of elements
    of a vector.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    rows: Callable[[int, int], npt.NDArray[Any]]

    @property
    def size_bytes(self) -> int:
        kind = BLOCK_TYPES[NUMBER_OF[self.kind]]
        return math.prod(self.shape) // kind.elements * kind.bytes


def write_header(path: Path, metadata: Mapping[str, Value], tensors: Sequence[NewTensor]) -> list[int]:
    """Write the header of a file that has the tensors' size, whose contents are zeros so far. Returns where each
    begins.
    """
    infos, offset, offsets = [], 0, []
    for tensor in tensors:
        offsets.append(offset)
        dims = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
        infos.append(_text(tensor.name) + dims + struct.pack("<IQ", NUMBER_OF[tensor.kind], offset))
        offset = aligned(offset + tensor.size_bytes)
    keys = [_text(key) + _value(value) for key, value in metadata.items()]
    counts = struct.pack("<IQQ", max(VERSIONS), len(tensors), len(metadata))
    header = b"".join([MAGIC, counts, *keys, *infos])
    start = aligned(len(header))
    with path.open("wb") as file:
        file.write(header)
        file.truncate(start + offset)
    return [start + each for each in offsets]


def write_tensors(
    path: Path, tensors: Sequence[tuple[NewTensor, int]], progress: Callable[[int, int], None] = lambda *_: None
) -> None:
    """Write the values of tensors, each with the offset where it begins. ``progress`` receives the number of written
    elements and of all elements.
    """
    total, done = sum(math.prod(tensor.shape) for tensor, _ in tensors), 0
    with path.open("r+b") as file:
        for tensor, offset in tensors:
            file.seek(offset)
            columns = 1 if len(tensor.shape) == 1 else tensor.shape[-1]
            rows = math.prod(tensor.shape) // columns
            step = max(1, BLOCK_ELEMENTS // columns)
            for start in range(0, rows, step):
                stop = min(start + step, rows)
                file.write(np.ascontiguousarray(tensor.rows(start, stop)).data)
                done += (stop - start) * columns
                progress(done, total)
            assert file.tell() == offset + tensor.size_bytes, tensor.name


def aligned(offset: int) -> int:
    return -(-offset // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def _text(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _value(value: Value) -> bytes:
    """The type and the value. Integers have 32 bits without a sign, or with one if they are below 0."""
    if isinstance(value, str):
        return struct.pack("<I", TEXT) + _text(value)
    if isinstance(value, np.ndarray):
        head = struct.pack("<IIQ", ARRAY, _KINDS[value.dtype], len(value))
        return head + value.astype(value.dtype.newbyteorder("<")).tobytes()
    if isinstance(value, bool | int | float):
        code = "?" if isinstance(value, bool) else "f" if isinstance(value, float) else "I" if value >= 0 else "i"
        return struct.pack(f"<I{code}", _KINDS[np.dtype(code)], value)
    return struct.pack("<IIQ", ARRAY, TEXT, len(value)) + b"".join(map(_text, value))
