"""Layer reads: the pages of a batch, read part by part while its later layers are computed.

The arrays of pages and states are divided into a few parts, in the order in which a batch finishes with them. Both
sides of a transfer divide them alike, because they have the same bundle. A batch of many tokens runs up to the last
step that uses a part, copies what was asked for of it, and continues, so nothing can overwrite it before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from nearfar.compiler.bundle.entries import StepEntry
from nearfar.compiler.runtime.page_bytes import UnitBlock, UnitKind, gather

# More parts leave less to send after the last layer, and cost both sides a message each.
PARTS = 8
# A batch of fewer tokens is over too soon for its parts to be worth a call each.
FEWEST_TOKENS = 64


@dataclass(frozen=True, slots=True)
class LayerPart:
    """``names`` of arrays that no step after ``last_step`` uses."""

    names: frozenset[str]
    last_step: int

    def of(self, blocks: Sequence[UnitBlock]) -> list[UnitBlock]:
        """The units of blocks, in these arrays alone."""
        return [UnitBlock(self._kind(block.kind), block.units) for block in blocks]

    def _kind(self, kind: UnitKind) -> UnitKind:
        sizes = {name: size for name, size in kind.sizes.items() if name in self.names}
        return UnitKind(kind.name, kind.count, sizes)


def layer_parts(kinds: Sequence[UnitKind], steps: Sequence[StepEntry]) -> list[LayerPart]:
    """The parts of all arrays of ``kinds``, each at least one, in the order in which the steps finish with them."""
    last = {name: -1 for kind in kinds for name in kind.sizes}
    for index, step in enumerate(steps):
        for name in (*step.inputs.values(), *step.outputs.values()):
            if name in last:
                last[name] = index
    names = sorted(last, key=lambda name: last[name])
    count = min(PARTS, len(names))
    groups = [names[len(names) * i // count : len(names) * (i + 1) // count] for i in range(count)]
    return [LayerPart(frozenset(group), last[group[-1]]) for group in groups]


@dataclass(eq=False, slots=True)
class LayerRead:
    """Units that are read after the batch ``number``. ``parts`` are the blocks of each part, and ``futures`` their
    bytes.
    """

    number: int
    parts: Sequence[Sequence[UnitBlock]]
    futures: list[Future[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.futures += [Future() for _ in self.parts]

    def copy(self, parts: int, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Copy the first parts, unless they have been copied. Belongs to the thread that runs batches."""
        for blocks, future in zip(self.parts[:parts], self.futures[:parts], strict=True):
            if not future.done():
                future.set_result(gather(blocks, arrays))

    def fail(self, error: Exception) -> None:
        """The batch failed."""
        for future in self.futures:
            if not future.done():
                future.set_exception(error)
