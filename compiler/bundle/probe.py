"""The probe: what a page reads before it downloads a bundle's weights, to measure whether the model will run there.

``probe.json`` describes a bundle of a few layers, of every kind that the model has, with the kernels of the complete
bundle. Its weights are not stored: a runtime makes them of numbers that follow from their index, so a probe takes less
than 2 MB whatever the model's size. `made_plane` defines them.
"""

from __future__ import annotations

import json

import numpy as np

from ..ir.expr import Natural
from .entries import Entry, FileEntry, PlaneEntry, PlanEntry, SelfTestEntry, VectorTestEntry, WeightEntry

PROBE_FILE = "probe.json"
PROBE_VERSION = 2
# The words that all planes are made of repeat after this number, a prime, so that no two rows of a matrix are alike.
PERIOD = 262_139
# Each plane starts this many words behind the one before it.
STRIDE = 7919
# The values of a plane that holds numbers instead of codes. A word's highest four bits choose one of them.
VALUES = 16


class ProbeFile(Entry):
    """What a probe has in place of the manifest's own ``plans``, ``weights``, ``shards`` and tests. Its only plan has
    the name of the model's own, and each list of variants that the complete plan has.

    ``layers``: for each of the model's layers, the number of the one in the probe that has the same kernels, so that a
    runtime can run the complete plan on the weights of a few layers.
    ``values``: for each plane that holds numbers and no codes, as "weight:plane", the bits of 16 of the model's own
    values, the quantiles of its first rows.
    """

    probe_version: Natural
    layers: list[Natural]
    plans: dict[str, PlanEntry]
    weights: dict[str, WeightEntry]
    shards: list[FileEntry]
    values: dict[str, list[Natural]]
    self_test: SelfTestEntry | None
    vector_test: VectorTestEntry | None

    def file(self) -> bytes:
        """The content of ``probe.json``."""
        return json.dumps(self.model_dump(mode="json"), separators=(",", ":"), ensure_ascii=False).encode()


def words(period: int = PERIOD) -> np.ndarray:
    """The words (period,) uint32: the finalizer of MurmurHash3 (Appleby 2011) of each index plus one."""
    word = np.arange(1, period + 1, dtype=np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        word ^= word >> np.uint32(shift)
        word *= np.uint32(factor)
    return word ^ (word >> np.uint32(16))


def made_plane(plane: PlaneEntry, number: int, values: list[int] | None) -> np.ndarray:
    """The bytes of plane ``number`` of a probe: its words, or the one of ``values`` that each word's highest bits
    choose.
    """
    start = number * STRIDE % PERIOD
    block = np.roll(words(), -start)
    if values is None:
        return np.resize(block, -(-plane.size // 4)).view(np.uint8)[: plane.size]
    width = np.dtype(plane.dtype).itemsize
    table = np.array(values, np.dtype(f"uint{8 * width}"))
    return np.resize(table[block >> np.uint32(28)], plane.size // width).view(np.uint8)
