"""Page transfers: copies of pages between the GPU and bytes on the host, in the order of the stream.

They pass through pieces of pinned memory, in which the units of one array follow each other: units that are neighbours
on the GPU too are one copy. A thread of its own waits for the copies and puts the bytes of a read in order, so neither
the caller nor the thread that waits for batches does. The caller waits only if all pieces are in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import numpy as np

from nearfar.compiler.runtime.errors import DeviceError
from nearfar.compiler.runtime.page_bytes import UnitBlock, UnitKind, parts_of

from .driver import Bytes, Driver

PIECE_BYTES, NUM_PIECES = 16 << 20, 4


class PageTransfers:
    """``addresses`` are those of the arrays by name. All calls come from one thread. Raises DeviceError."""

    def __init__(self, driver: Driver, addresses: Mapping[str, int], kinds: Sequence[UnitKind]) -> None:
        self._driver, self._addresses = driver, addresses
        # A piece holds at least one unit.
        self._piece_bytes = max(PIECE_BYTES, *(kind.unit_bytes for kind in kinds))
        self._free: SimpleQueue[Bytes] = SimpleQueue()
        for _ in range(NUM_PIECES):
            self._free.put(driver.allocate_pinned(self._piece_bytes))
        self._waiter = ThreadPoolExecutor(1, "cuda-pages")

    def read(self, blocks: Sequence[UnitBlock]) -> Future[bytes]:
        """See `Runner.read_pages`."""
        parts = [
            self._through_piece(kind, units, self._driver.download, self._receive)
            for block in blocks
            for kind, units in self._chunks(block)
        ]
        # It comes after all parts.
        return self._waiter.submit(lambda: b"".join(part.result() for part in parts))

    def write(self, blocks: Sequence[UnitBlock], data: bytes) -> None:
        """See `Runner.write_pages`."""
        for block, rows in parts_of(blocks, data):
            start = 0
            for kind, units in self._chunks(block):
                stop = start + len(units)
                self._through_piece(kind, units, self._upload, self._settle, rows[start:stop])
                start = stop

    def close(self) -> None:
        """Wait for all copies."""
        self._waiter.shutdown()

    def _chunks(self, block: UnitBlock) -> Iterator[tuple[UnitKind, Sequence[int]]]:
        """The units of a block, as many at a time as a piece holds."""
        most = self._piece_bytes // block.kind.unit_bytes
        for start in range(0, len(block.units), most):
            yield block.kind, block.units[start : start + most]

    def _through_piece(
        self,
        kind: UnitKind,
        units: Sequence[int],
        copy: Callable[[Bytes, int], None],
        then: Callable[..., Any],
        rows: Bytes | None = None,
    ) -> Future[Any]:
        """Copy units through a piece, which has ``rows`` first, and let the waiting thread do what follows."""
        piece = self._free.get()
        try:
            if rows is not None:
                for _, columns, own in in_piece(piece, kind, len(units)):
                    own[...] = rows[:, columns]
            for name, _, own in in_piece(piece, kind, len(units)):
                size = own.shape[1]
                for first, last in runs(units):
                    copy(own[first:last], self._addresses[name] + units[first] * size)
            event = self._driver.record()
        except BaseException:
            # The stream may still use the piece. If it cannot be waited for, the device has failed, and later calls
            # report why.
            with suppress(DeviceError):
                self._driver.wait(self._driver.record())
            self._free.put(piece)
            raise
        return self._waiter.submit(then, event, piece, kind, len(units))

    def _upload(self, rows: Bytes, address: int) -> None:
        self._driver.upload(address, rows)

    # --- on the waiting thread ---

    def _receive(self, event: Any, piece: Bytes, kind: UnitKind, count: int) -> bytes:
        """The bytes of the units that a piece has received."""
        try:
            self._driver.wait(event)
            rows = np.empty((count, kind.unit_bytes), np.uint8)
            for _, columns, own in in_piece(piece, kind, count):
                rows[:, columns] = own
            return rows.tobytes()
        finally:
            self._free.put(piece)

    def _settle(self, event: Any, piece: Bytes, kind: UnitKind, count: int) -> None:  # noqa: ARG002
        """A piece is free once the stream has read it. A failure of the device is that of the next batch too."""
        try:
            self._driver.wait(event)
        finally:
            self._free.put(piece)


def in_piece(piece: Bytes, kind: UnitKind, count: int) -> Iterator[tuple[str, slice, Bytes]]:
    """For each array of a kind: its name, its columns in the bytes of a unit, and its rows (count, bytes) in a
    piece.
    """
    start = 0
    for name, columns in kind.columns():
        size = columns.stop - columns.start
        stop = start + size * count
        yield name, columns, piece[start:stop].reshape(count, size)
        start = stop


def runs(units: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first and the last index, exclusive, of each run of units that follow each other."""
    first = 0
    for index in range(1, len(units) + 1):
        if index == len(units) or units[index] != units[index - 1] + 1:
            yield first, index
            first = index
