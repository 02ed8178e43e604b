"""A bundle's arrays on the GPU: weights, constants, states, the plan's buffers and scratch, and the batch's inputs. All
are allocated once, except that buffers and scratch of a plan without pages grow.

Every array has an address by name, "NAME.PLANE" for a weight and "scratch.NAME" for scratch. The inputs share one
arena, so that a batch needs one copy. The page lists, whose length varies most, are last, so that the copy ends with
their actual end. Inputs that the host gathers follow them; each has a copy of its own, because they are large.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from nearfar.compiler.bundle.entries import ITEM_BYTES, BufferEntry, InputEntry, shards_of
from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.ir.expr import evaluate
from nearfar.compiler.ir.plan import ZEROED
from nearfar.compiler.runtime.batch import Array
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.compiler.runtime.plan_runner import constant_tables, layout_of, passing_entries, scratch_entries

from .driver import Bytes, Driver

ALIGNMENT = 256
# Weights are uploaded through two alternating pieces of pinned memory of this size.
PIECE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class ArenaSlice:
    """Where an input begins in the arena, and how many 4-byte elements it may have."""

    offset: int
    elements: int


class DeviceMemory:
    """``most`` are the largest dims, ``room`` those for which the plan's buffers and scratch have room at first. Raises
    DeviceError if the GPU's memory, or an array's index, would overflow.
    """

    def __init__(
        self, driver: Driver, bundle: Bundle, activation: str, most: Mapping[str, int], room: Mapping[str, int]
    ) -> None:
        self._driver, self._manifest, self._activation, self._most = driver, bundle.manifest, activation, most
        self._room = room
        self.addresses: dict[str, int] = {}
        manifest = self._manifest
        self._large = manifest.large_inputs
        self._upload_weights(bundle)
        for name, table in constant_tables(manifest).items():
            self.addresses[name] = driver.allocate(table.nbytes)
            driver.upload(self.addresses[name], table)
        self.addresses |= self._allocated(manifest.states, most)
        self.addresses |= self._allocated(passing_entries(manifest), room)
        self.arena = lay_out_arena(manifest, most)
        self.arena_bytes = max(slice_.offset + 4 * slice_.elements for slice_ in self.arena.values())
        self._arena_address = driver.allocate(self.arena_bytes)
        self.addresses |= {name: self._arena_address + slice_.offset for name, slice_ in self.arena.items()}
        driver.wait(driver.record())

    def grow(self, room: Mapping[str, int]) -> None:
        """Replace the plan's buffers and scratch by larger ones, once all submitted work is done."""
        self._driver.wait(self._driver.record())
        larger = self._allocated(passing_entries(self._manifest), room)
        for name in larger:
            self._driver.free(self.addresses[name])
        self.addresses |= larger
        self._room = room

    def _allocated(self, entries: Mapping[str, BufferEntry], dims: Mapping[str, int]) -> dict[str, int]:
        """The addresses of new arrays. If one does not fit, none remains."""
        addresses: dict[str, int] = {}
        try:
            for name, entry in entries.items():
                # A driver cannot allocate 0 bytes, which is the size of the states of adapters if there are no slots
                # for them.
                size = max(self._size_bytes(name, entry, dims), ALIGNMENT)
                addresses[name] = self._driver.allocate(size)
                # Other arrays are never read before they are written.
                if name in self._manifest.states or name.startswith(f"scratch.{ZEROED}"):
                    self._driver.clear(addresses[name], size)
        except DeviceError:
            # The arrays may still be cleared.
            self._driver.wait(self._driver.record())
            for address in addresses.values():
                self._driver.free(address)
            raise
        return addresses

    def clear_zeroed(self) -> None:
        """Clear the scratch that kernels leave as zeros, after one that did not end."""
        for name, entry in scratch_entries(self._manifest).items():
            if name.startswith(f"scratch.{ZEROED}"):
                self._driver.clear(self.addresses[name], max(self._size_bytes(name, entry, self._room), ALIGNMENT))

    def upload_batch(self, inputs: Collection[str], arrays: Mapping[str, Array], staging: Bytes) -> None:
        """Start the upload of a batch's inputs for a plan, through pinned memory of ``arena_bytes``."""
        end = 0
        for name in inputs:
            slice_, values = self.arena[name], arrays[name]
            stop = slice_.offset + values.nbytes
            staging[slice_.offset : stop] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            if name in self._large and values.size:
                self._driver.upload(self._arena_address + slice_.offset, staging[slice_.offset : stop])
            elif values.size:
                end = max(end, stop)
        self._driver.upload(self._arena_address, staging[:end])

    def page_bytes(self, name: str) -> int:
        """Bytes of one page of a state."""
        entry = self._manifest.states[name]
        return self._size_bytes(name, entry, self._most) // evaluate(entry.shape[0], self._most)

    def _size_bytes(self, name: str, entry: BufferEntry, most: Mapping[str, int]) -> int:
        layout = layout_of(entry, self._activation, most)
        elements = math.prod(layout.shape)
        # Kernels index vectors of at least 4 bytes with 32-bit integers.
        size = elements * ITEM_BYTES[layout.dtype]
        if size >= 4 << 31:
            raise DeviceError(
                f"{self._manifest.model}: {name} would take {size >> 30} GiB, beyond what kernels index; request fewer "
                f"pages"
            )
        return size

    def _upload_weights(self, bundle: Bundle) -> None:
        files = {index: self._manifest.shards[index] for index in sorted(shards_of(self._manifest.weights))}
        needed, free = sum(shard.size for shard in files.values()), self._driver.available_bytes()
        if needed > free:
            raise DeviceError(
                f"{bundle.path}: the weights, all experts included, take {needed:,} bytes, and {free:,} of the GPU's "
                "memory are free; free some, or compile with fewer bits or for the cpu target"
            )
        shards = {index: self._driver.allocate(shard.size) for index, shard in files.items()}
        largest = max(shard.size for shard in files.values())
        stages = [self._driver.allocate_pinned(min(PIECE_BYTES, largest)) for _ in range(2)]
        for index, shard in files.items():
            self._upload_file(bundle.file(shard.file), shards[index], stages)
        for name, weight in self._manifest.weights.items():
            self.addresses |= {f"{name}.{plane.name}": shards[plane.shard] + plane.offset for plane in weight.planes}

    def _upload_file(self, path: Path, address: int, stages: list[Bytes]) -> None:
        events: list[object] = [None, None]
        with path.open("rb", buffering=0) as file:
            for piece in count():
                stage = stages[piece % 2]
                if events[piece % 2] is not None:
                    self._driver.wait(events[piece % 2])
                    events[piece % 2] = None
                size = file.readinto(stage.data)
                if not size:
                    break
                self._driver.upload(address, stage[:size])
                events[piece % 2] = self._driver.record()
                address += size
        for event in events:
            if event is not None:
                self._driver.wait(event)


def lay_out_arena(manifest: Manifest, most: Mapping[str, int]) -> dict[str, ArenaSlice]:
    """The slices of the inputs, in order, then the page lists, then the large inputs."""
    arena = {}
    offset = 0
    large = manifest.large_inputs

    def order(item: tuple[str, InputEntry]) -> tuple[bool, bool]:
        return item[0] in large, item[0].endswith("page_ids")

    for name, entry in sorted(manifest.inputs.items(), key=order):
        elements = int(np.prod([evaluate(size, most) for size in entry.shape]))
        arena[name] = ArenaSlice(offset, elements)
        offset += -(-4 * elements // ALIGNMENT) * ALIGNMENT
    return arena
