"""Pages pass between the GPU and the host in pieces of pinned memory: all kinds, scattered units, small pieces, and a
device that fails.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from emulated_driver import EmulatedDriver

from nearfar.compiler.runtime.errors import DeviceError
from nearfar.compiler.runtime.page_bytes import UnitBlock, UnitKind, gather
from nearfar.targets.cuda import page_transfers
from nearfar.targets.cuda.page_transfers import PageTransfers, runs

KINDS = [UnitKind("page", 9, {"k": 24, "v": 8}), UnitKind("page", 5, {"w": 40}), UnitKind("slot", 3, {"s": 12})]
UNITS = [[3, 4, 5, 0, 8, 7, 2], [1, 2], [2]]


class CountingDriver(EmulatedDriver):
    copies = 0

    def download(self, data: np.ndarray, address: int) -> None:
        self.copies += 1
        super().download(data, address)


def test_runs_are_units_that_follow_each_other() -> None:
    assert list(runs([3, 4, 5, 0, 8, 7, 2])) == [(0, 3), (3, 4), (4, 5), (5, 6), (6, 7)]
    assert list(runs([])) == []


@pytest.mark.parametrize("piece_bytes", [1, 100, 1 << 20])
def test_units_of_all_kinds_are_read_and_written_in_their_order(
    piece_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_transfers, "PIECE_BYTES", piece_bytes)
    driver, random = CountingDriver(tmp_path), np.random.default_rng(3)
    arrays = {
        name: random.integers(0, 256, (kind.count, size), dtype=np.uint8)
        for kind in KINDS
        for name, size in kind.sizes.items()
    }
    addresses = {name: driver.allocate(array.nbytes) for name, array in arrays.items()}
    for name, array in arrays.items():
        driver.upload(addresses[name], array)
    transfers = PageTransfers(driver, addresses, KINDS)
    blocks = [UnitBlock(kind, units) for kind, units in zip(KINDS, UNITS, strict=True)]
    data = transfers.read(blocks).result()
    assert data == gather(blocks, arrays)
    # Neighbours of one array are one copy, if a piece holds them.
    assert driver.copies == (17 if piece_bytes == 1 else 12)
    # Into others, which differ from the first ones.
    moved = [UnitBlock(block.kind, list(block.units)[::-1]) for block in blocks]
    transfers.write(moved, data)
    assert transfers.read(moved).result() == data
    assert transfers.read(blocks).result() != data
    driver.broken = True
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        transfers.read(blocks).result()
    driver.broken = False
    # The pieces are free again.
    assert transfers.read(moved).result() == data
    transfers.close()
