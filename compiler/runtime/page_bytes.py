"""The bytes of whole pages of keys and values, and of slots of recurrent states, outside of a device.

They come group by group, page by page, each page with all layers of its group in the plan's order, and last the slots
of states. Shipped prefixes (`pipeline/prefixes.py`) and browsers have the same order. The rows that a model keeps for
its own heads are not part of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import RequestError


@dataclass(frozen=True, slots=True)
class UnitKind:
    """The pages of a group, or the slots of states, of which a runner has ``count``. ``sizes``: by the name of each
    layer's array, the bytes of one unit in it.
    """

    name: str
    count: int
    sizes: Mapping[str, int]

    @property
    def unit_bytes(self) -> int:
        return sum(self.sizes.values())

    def columns(self) -> Iterator[tuple[str, slice]]:
        """By the name of each array, where its bytes are among those of a unit."""
        start = 0
        for name, size in self.sizes.items():
            yield name, slice(start, start + size)
            start += size


@dataclass(frozen=True, slots=True)
class UnitBlock:
    """Units of one kind, in the order of their bytes."""

    kind: UnitKind
    units: Sequence[int]

    @property
    def size_bytes(self) -> int:
        return self.kind.unit_bytes * len(self.units)


def unit_blocks(model: str, kinds: Sequence[UnitKind], units: Sequence[Sequence[int]]) -> list[UnitBlock]:
    """Raises RequestError for units that the runner does not have."""
    if len(units) != len(kinds):
        raise RequestError(f"{model} has {len(kinds)} kinds of pages and states, and {len(units)} lists of them came")
    for kind, some in zip(kinds, units, strict=True):
        for unit in some:
            if not 0 <= unit < kind.count:
                raise RequestError(
                    f"{kind.name} {unit} is not in the pool, which has {kind.name}s 0 to {kind.count - 1}"
                )
    return [UnitBlock(kind, some) for kind, some in zip(kinds, units, strict=True)]


def require_size(model: str, blocks: Sequence[UnitBlock], data: bytes) -> None:
    """Raise RequestError unless the data are those of the units."""
    expected = sum(block.size_bytes for block in blocks)
    if len(data) != expected:
        count = sum(len(block.units) for block in blocks)
        raise RequestError(
            f"{count} pages of {model} are {expected} bytes, not {len(data)}; read them from the same bundle",
            expected=expected,
            found=len(data),
        )


def gather(blocks: Sequence[UnitBlock], arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """The bytes of units in arrays on the host, each with one row for a unit."""
    parts = []
    for block in blocks:
        part = np.empty((len(block.units), block.kind.unit_bytes), np.uint8)
        for name, columns in block.kind.columns():
            part[:, columns] = as_rows(arrays[name])[np.array(block.units, np.intp)]
        parts.append(part.tobytes())
    return b"".join(parts)


def scatter(blocks: Sequence[UnitBlock], arrays: Mapping[str, npt.NDArray[Any]], data: bytes) -> None:
    """The reverse of `gather`."""
    for block, part in parts_of(blocks, data):
        for name, columns in block.kind.columns():
            as_rows(arrays[name])[np.array(block.units, np.intp)] = part[:, columns]


def parts_of(blocks: Sequence[UnitBlock], data: bytes) -> Iterator[tuple[UnitBlock, npt.NDArray[np.uint8]]]:
    """The bytes of each block, with a row for each of its units."""
    start = 0
    for block in blocks:
        part = np.frombuffer(data, np.uint8, block.size_bytes, start)
        yield block, part.reshape(len(block.units), block.kind.unit_bytes)
        start += block.size_bytes


def as_rows(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return array.reshape(len(array), -1).view(np.uint8)
