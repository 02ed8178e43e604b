"""Batch: what a runner's forward takes, as arrays; and the interface of runners.

All arrays are int32. S new tokens of B sequences lie one after the other; see `ops.py` for what each array means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .errors import RequestError
from .manifest import Manifest

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Batch:
    """Every sequence has at least one new token, so S == B says that each has one."""

    token_ids: IntArray
    positions: IntArray
    slots: IntArray
    seq_starts: IntArray
    page_indptr: IntArray
    page_ids: IntArray
    sample_rows: IntArray

    def arrays(self) -> dict[str, IntArray]:
        return {name: getattr(self, name) for name in self.__slots__}

    def dims(self, num_pages: int) -> dict[str, int]:
        """The values of all dims for this batch, on a pool of ``num_pages``."""
        return {
            "S": len(self.token_ids),
            "B": len(self.seq_starts) - 1,
            "R": len(self.sample_rows),
            "T": int(self.positions.max(initial=-1)) + 1,
            "L": len(self.page_ids),
            "P": num_pages,
        }


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of one sequence.

    ``token_ids`` follow ``start`` cached ones, ``pages`` hold the sequence, ``sample`` lists the rows of the chunk whose logits are wanted.
    """

    token_ids: Sequence[int]
    start: int
    pages: Sequence[int]
    sample: Sequence[int] = ()


def make_batch(chunks: Sequence[Chunk], page_size: int) -> Batch:
    """Lay chunks of several sequences one after the other. Raises RequestError for a chunk without a token."""
    lengths = [len(chunk.token_ids) for chunk in chunks]
    if 0 in lengths:
        raise RequestError(f"chunk {lengths.index(0)} of the batch has no new token; leave its sequence out of the batch")
    starts = np.cumsum([0, *lengths])
    positions = [np.arange(chunk.start, chunk.start + length) for chunk, length in zip(chunks, lengths, strict=True)]
    slots = [
        np.asarray(chunk.pages)[position // page_size] * page_size + position % page_size
        for chunk, position in zip(chunks, positions, strict=True)
    ]
    rows = [[start + row for row in chunk.sample] for chunk, start in zip(chunks, starts, strict=False)]
    return Batch(
        token_ids=join([chunk.token_ids for chunk in chunks]),
        positions=join(positions),
        slots=join(slots),
        seq_starts=starts.astype(np.int32),
        page_indptr=np.cumsum([0, *(len(chunk.pages) for chunk in chunks)]).astype(np.int32),
        page_ids=join([chunk.pages for chunk in chunks]),
        sample_rows=join(rows),
    )


def join(parts: Sequence[Sequence[int] | npt.NDArray[np.int_]]) -> IntArray:
    return np.concatenate([np.asarray(part, np.int32) for part in parts])


@dataclass(frozen=True, slots=True)
class Output:
    """``logits`` (R, V) float32 and ``next_token_ids`` (R,) int32, the first largest of each row."""

    logits: npt.NDArray[np.float32]
    next_token_ids: IntArray


class Runner(Protocol):
    """Runs a bundle's plan on one device. Keys and values stay in its pages between calls."""

    @property
    def manifest(self) -> Manifest: ...

    @property
    def num_pages(self) -> int: ...

    @property
    def device(self) -> str:
        """What it runs on, in words."""

    def forward(self, batch: Batch) -> Output: ...

    def close(self) -> None:
        """Give back the device's memory."""
