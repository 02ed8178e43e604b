"""The tiers of a model: the host's memory above the disk. Units go to both, on a thread of its own, so that what the
host's memory evicts is on the disk already; and come back from where they are, on threads too.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from ..log_event import log_event
from .chain import UnitName, chain_hashes, first_link
from .disk_tier import DiskTier
from .host_tier import HostTier

# How many units are remembered to be on the disk, so that the device is not read for them again.
MAX_REMEMBERED = 1 << 18
READERS = min(8, (os.cpu_count() or 1) + 1)


class UnitKind(Protocol):
    """A cache kind, as far as the tiers know it; see `engine/cache_kind.py`."""

    is_chain: bool

    def unread(self, length: int) -> int:
        """How many pages at the start of a prefix nobody reads who continues after ``length`` tokens."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A prompt's ``keys``, as the prefix cache compares its tokens, of which the device has the first ``start``.
    ``adapter``: the digest of a LoRA adapter, "" for none.
    """

    keys: Sequence[int]
    adapter: str
    start: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """What the tiers have of the first ``length`` tokens from ``start`` on, by kind and page; ``data`` is all of it."""

    start: int
    length: int
    units: Mapping[tuple[int, int], bytes]
    data: bytes


class Tiers:
    """``kinds`` are those of the engine's cache. One of the tiers may be None."""

    def __init__(
        self, host: HostTier | None, disk: DiskTier | None, root: bytes, kinds: Sequence[UnitKind], page_size: int
    ) -> None:
        self._host, self._disk, self._root, self._kinds, self._page_size = host, disk, root, kinds, page_size
        self._lock = Lock()
        # On the way to the tiers, and on the disk when it was last seen.
        self._arriving: set[UnitName] = set()
        self._on_disk: OrderedDict[UnitName, None] = OrderedDict()
        self._host_hits = self._disk_hits = 0
        # What arrived before the last `clear` is not stored.
        self._generation = 0
        self._writer = ThreadPoolExecutor(1, "kv-writer")
        self._fetchers = ThreadPoolExecutor(2, "kv-fetcher")
        self._readers = ThreadPoolExecutor(READERS, "kv-reader")

    def links(self, keys: Sequence[int], adapter: str, known: Sequence[bytes] = ()) -> list[bytes]:
        """The chain hash of each full page, of which the first ``known`` ones need not be computed."""
        link = known[-1] if known else first_link(self._root, adapter)
        more = chain_hashes(link, keys[len(known) * self._page_size :], self._page_size)
        return [*known, *more]

    def lacks(self, name: UnitName) -> bool:
        """Whether a unit should be stored. This asks no disk."""
        if name in self._arriving or name in self._on_disk:
            return False
        if self._disk is not None and not self._disk.is_paused:
            return True
        return self._host is not None and not self._host.has(name)

    def put(self, names: Sequence[UnitName], data: Future[bytes], stored: Callable[[], None]) -> Future[None]:
        """Store units of one size, which have been read together. ``stored`` is called on another thread."""
        with self._lock:
            self._arriving.update(names)
        return self._writer.submit(self._store, names, data, self._generation, stored)

    def fetch(self, wanted: Wanted, fetched: Callable[[Fetched | None], None]) -> None:
        """Look for the rest of a prompt. ``fetched`` is called on another thread, with None if nothing was found."""
        self._fetchers.submit(self._fetch, wanted, fetched)

    def clear(self) -> None:
        """Forget everything, on the disk also for the other processes that serve the model."""
        self._generation += 1
        if self._host is not None:
            self._host.clear()
        self._writer.submit(self._clear).result()

    def counts(self) -> dict[str, int]:
        """By the names of `engine.stats.TierStats`. Callable from any thread."""
        host, disk = self._host, self._disk
        return {
            "host_bytes": 0 if host is None else host.used_bytes,
            "disk_bytes": 0 if disk is None else disk.used_bytes,
            "host_hits": self._host_hits,
            "disk_hits": self._disk_hits,
            "host_evictions": 0 if host is None else host.evictions,
            "disk_evictions": 0 if disk is None else disk.evictions,
            "damaged": 0 if disk is None else disk.damaged,
            "failures": 0 if disk is None else disk.failures,
        }

    def close(self) -> None:
        """Store what has arrived."""
        for threads in (self._fetchers, self._readers, self._writer):
            threads.shutdown()

    # --- on the threads ---

    def _store(
        self, names: Sequence[UnitName], data: Future[bytes], generation: int, stored: Callable[[], None]
    ) -> None:
        try:
            # A device that failed has nothing to store.
            if data.exception() is None and generation == self._generation:
                self._store_each(names, data.result())
        finally:
            with self._lock:
                self._arriving.difference_update(names)
            stored()

    def _store_each(self, names: Sequence[UnitName], data: bytes) -> None:
        size = len(data) // len(names)
        for index, name in enumerate(names):
            unit = data[index * size : (index + 1) * size]
            if self._host is not None:
                self._host.put(name, unit)
            if self._disk is not None and self._disk.put(name, unit):
                self._remember(name)

    def _clear(self) -> None:
        with self._lock:
            self._on_disk.clear()
        if self._host is not None:
            self._host.clear()
        if self._disk is not None:
            self._disk.clear()

    def _fetch(self, wanted: Wanted, fetched: Callable[[Fetched | None], None]) -> None:
        found: Fetched | None = None
        try:
            found = self._found(wanted)
        except Exception as error:
            # The prompt is computed instead.
            log_event("kv_fetch_failed", logging.ERROR, error=repr(error))
        fetched(found)

    def _found(self, wanted: Wanted) -> Fetched | None:
        chain = self.links(wanted.keys, wanted.adapter)
        first = wanted.start // self._page_size
        units: dict[tuple[int, int], bytes] = {}
        lost: set[UnitName] = set()
        while (pages := self._longest(chain, first, lost)) > first:
            needed = [
                (index, page)
                for index, kind in enumerate(self._kinds)
                for page in range(max(first, kind.unread(pages * self._page_size)), pages)
            ]
            new = [unit for unit in needed if unit not in units]
            names = [UnitName(chain[page], index) for index, page in new]
            # The end of a prefix is evicted first, so it is used first.
            read = [*self._readers.map(self._get, reversed(names))][::-1]
            for unit, name, data in zip(new, names, read, strict=True):
                if data is None:
                    lost.add(name)
                else:
                    units[unit] = data
            if all(unit in units for unit in needed):
                data = b"".join(units[unit] for unit in needed)
                return Fetched(wanted.start, pages * self._page_size, units, data)
        return None

    def _longest(self, chain: Sequence[bytes], first: int, lost: set[UnitName]) -> int:
        """The most pages of a prefix whose units are in the tiers from page ``first`` on, as far as they are read."""
        longest = first
        # By kind, the number of pages up to the last one that is not there.
        incomplete = [first] * len(self._kinds)
        for page in range(first, len(chain)):
            for index, kind in enumerate(self._kinds):
                if not self._has(UnitName(chain[page], index), lost):
                    if kind.is_chain:
                        return longest
                    incomplete[index] = page + 1
            length = (page + 1) * self._page_size
            if all(
                last == first or last <= kind.unread(length) for last, kind in zip(incomplete, self._kinds, strict=True)
            ):
                longest = page + 1
        return longest

    def _has(self, name: UnitName, lost: set[UnitName]) -> bool:
        if name in lost:
            return False
        if (self._host is not None and self._host.has(name)) or name in self._on_disk:
            return True
        return self._disk is not None and self._disk.has(name)

    def _get(self, name: UnitName) -> bytes | None:
        data = None if self._host is None else self._host.get(name)
        if data is not None:
            with self._lock:
                self._host_hits += 1
            return data
        data = None if self._disk is None else self._disk.get(name)
        if data is None:
            with self._lock:
                self._on_disk.pop(name, None)
            return None
        self._remember(name)
        with self._lock:
            self._disk_hits += 1
        if self._host is not None:
            self._host.put(name, data)
        return data

    def _remember(self, name: UnitName) -> None:
        with self._lock:
            self._on_disk[name] = None
            if len(self._on_disk) > MAX_REMEMBERED:
                self._on_disk.popitem(last=False)
