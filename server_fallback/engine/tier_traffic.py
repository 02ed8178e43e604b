"""Tier traffic: what goes from an engine's prefix cache to its tiers, and what comes back before a prompt is queued.

The scheduler does not know of it. Once an answer has its first token, and once it ends, the pages of its known tokens
are to be stored: a few with each turn, and those that are evicted before their turn comes at once. The device's reads
are in order with its steps, so a page is read before another sequence's step writes to it. What it read reaches the
tiers once all steps before the read have succeeded, because a failed one leaves unknown contents.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial

from nearfar.compiler.runtime.errors import NearfarError

from ..kv_tiers.chain import UnitName
from ..kv_tiers.tiers import Fetched, Tiers, Wanted
from ..log_event import log_event
from .kv_cache import KvCache
from .page_blocks import PageBlock, ReadPages, WritePages
from .page_imports import write_block
from .sequence import Sequence
from .stats import TierStats

# A shorter rest of a prompt is computed about as fast as it is fetched.
LEAST_PAGES = 2
# The bytes that are read in one turn, while a step is computed, and those that may be on their way to the tiers, also
# those of evicted units, which have no second chance.
TURN_BYTES, WAY_BYTES, EVICTED_WAY_BYTES = 16 << 20, 64 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Unit:
    """A page, or a slot of a state, of the cache kind ``kind``."""

    kind: int
    unit: int


@dataclass(slots=True)
class Read:
    """``steps``: how many steps that were open when it was submitted have not succeeded yet. ``size_bytes`` is what was
    expected of it. ``stored`` is done when the tiers have it.
    """

    names: list[UnitName]
    data: Future[bytes]
    steps: int
    size_bytes: int
    stored: Future[None] | None = None


class TierTraffic:
    """Belongs to the engine's thread. Without ``tiers`` it does nothing but `write_pages`. ``open_steps`` returns how
    many steps have been submitted and not read. ``resume`` lets that thread call a function soon, from any thread.
    """

    def __init__(
        self,
        kv: KvCache,
        tiers: Tiers | None,
        read: ReadPages,
        write: WritePages,
        open_steps: Callable[[], int],
        resume: Callable[[Callable[[], None]], None],
    ) -> None:
        self._kv, self._tiers, self._read, self._write = kv, tiers, read, write
        self._open_steps, self._resume = open_steps, resume
        # The units to store in order, and those of them that were evicted since the last call of the runner.
        self._pending: dict[Unit, UnitName] = {}
        self._evicted: dict[Unit, UnitName] = {}
        # Reads that wait for steps, those on their way to the tiers and the bytes of both, and those of a unit by kind.
        self._held: deque[Read] = deque()
        self._reads = self._way_bytes = 0
        self._unit_bytes: dict[int, int] = {}
        # The chain hashes of the pages of running sequences that were looked at.
        self._links: dict[Sequence, list[bytes]] = {}
        self._queries = self._restored = self._dropped = 0
        # Changed by `reset`: what was fetched before is not written.
        self._generation = 0
        for kind in kv.kinds if tiers is not None else ():
            kind.forgotten = partial(self._forgotten, kind.index)

    # --- to the tiers ---

    def save(self, sequence: Sequence, length: int, digest: str, *, ends: bool) -> None:
        """Store what the cache has of the full pages of a sequence's first ``length`` tokens, which are all computed.
        ``digest`` is that of its adapter, "" for none. ``ends``: it is not called again for this sequence.
        """
        if self._tiers is None:
            return
        keys, known = sequence.keys, self._links.pop(sequence, [])
        nodes = self._kv.prefixes.nodes(keys, length, sequence.adapter)
        links = self._tiers.links(keys[: len(nodes) * self._kv.page_size], digest, known)
        # A context shift changes the tokens.
        if not ends and sequence.params.context_shift is None:
            self._links[sequence] = links
        # The first pages were looked at before; the last one of them may have got a state since.
        first = max(0, len(known) - 1)
        for node, link in zip(nodes[first:], links[first:], strict=False):
            for kind, unit in enumerate(node.snapshots):
                name = UnitName(link, kind)
                if unit is not None and Unit(kind, unit) not in self._pending and self._tiers.lacks(name):
                    self._pending[Unit(kind, unit)] = name

    def stats(self) -> TierStats | None:
        """Callable from any thread; None without tiers."""
        if self._tiers is None:
            return None
        own = {"queries": self._queries, "restored": self._restored, "dropped": self._dropped}
        return TierStats(**own, **self._tiers.counts())

    @property
    def is_due(self) -> bool:
        """Whether `drain` would read something."""
        return bool(self._pending) and self._way_bytes < WAY_BYTES

    def drain(self, open_steps: int) -> None:
        """Read a few of the units that are to be stored, after the open steps."""
        if self.is_due:
            self._submit(self._next(), open_steps)

    def _next(self) -> dict[Unit, UnitName]:
        """The units of one turn, which are no longer pending."""
        left, some = TURN_BYTES, dict[Unit, UnitName]()
        for unit, name in self._pending.items():
            left -= self._unit_bytes.get(unit.kind, TURN_BYTES)
            if some and left < 0:
                break
            some[unit] = name
        for unit in some:
            del self._pending[unit]
        return some

    def flush_evicted(self, open_steps: int) -> None:
        """Read what was evicted. Call it before the runner may write to the pages."""
        if self._evicted:
            evicted, self._evicted = self._evicted, {}
            if self._way_bytes < EVICTED_WAY_BYTES:
                self._submit(evicted, open_steps)
            else:
                self._dropped += len(evicted)

    def step_succeeded(self) -> None:
        for read in self._held:
            read.steps -= 1
        self._store_settled()

    def drop(self) -> None:
        """Store nothing of what was to be stored, as when the device has failed and its contents are unknown."""
        self._pending.clear()
        self._evicted.clear()
        while self._held:
            self._stored(self._held.popleft())

    def forget(self, sequence: Sequence) -> None:
        """It has ended without `save`."""
        self._links.pop(sequence, None)

    def reset(self) -> Callable[[], None]:
        """Nothing that was computed before is stored or written any more. Call the result on another thread, which
        clears the tiers.
        """
        self.drop()
        self._generation += 1
        return (lambda: None) if self._tiers is None else self._tiers.clear

    def write_pages(self, units: Items[Items[int]], data: bytes) -> None:
        """`StepRunner.write_pages`, after what the pages held was stored."""
        self.flush_evicted(self._open_steps())
        self._write(units, data)

    def close(self, *, stores: bool) -> None:
        """End the threads of the tiers. ``stores``: with what was to be stored; all steps have succeeded."""
        if self._tiers is None:
            return
        while stores and self._pending:
            reads = self._submit(self._next(), 0)
            wait([read.stored for read in reads if read.stored is not None])
        self._pending = {}
        self._tiers.close()
        for kind in self._kv.kinds:
            kind.forgotten = None

    def _forgotten(self, kind: int, unit: int) -> None:
        """The cache has given up a unit, which may be written from the next step on."""
        name = self._pending.pop(Unit(kind, unit), None)
        if name is not None:
            self._evicted[Unit(kind, unit)] = name

    def _submit(self, units: dict[Unit, UnitName], open_steps: int) -> list[Read]:
        reads = []
        for kind in range(len(self._kv.kinds)):
            own = {unit.unit: name for unit, name in units.items() if unit.kind == kind}
            if not own:
                continue
            lists: list[list[int]] = [[] for _ in self._kv.kinds]
            lists[kind] = list(own)
            try:
                data = self._read(lists)
            except NearfarError as error:
                log_event("kv_read_failed", logging.ERROR, error=error.message)
                break
            read = Read(list(own.values()), data, open_steps, len(own) * self._unit_bytes.get(kind, 0))
            self._reads += 1
            self._way_bytes += read.size_bytes
            reads.append(read)
        self._held += reads
        self._store_settled()
        return reads

    def _store_settled(self) -> None:
        while self._tiers is not None and self._held and self._held[0].steps <= 0:
            read = self._held.popleft()
            stored = partial(self._resume, partial(self._stored, read))
            read.stored = self._tiers.put(read.names, read.data, stored)
            read.data.add_done_callback(partial(self._measure, read.names[0].kind, len(read.names)))

    def _stored(self, read: Read) -> None:
        self._reads -= 1
        self._way_bytes -= read.size_bytes

    def _measure(self, kind: int, count: int, data: Future[bytes]) -> None:
        if data.exception() is None:
            self._unit_bytes[kind] = len(data.result()) // count

    # --- from the tiers ---

    def fetch(self, keys: Items[int], limit: int, adapter: str | None, digest: str, then: Callable[[], None]) -> bool:
        """Look in the tiers for what the cache lacks of the first ``limit`` tokens of a prompt, write that into the
        cache, and call ``then``, on this thread. False, and nothing happens, if the cache has nearly all.
        """
        size = self._kv.page_size
        limit = limit // size * size
        if self._tiers is None or limit < LEAST_PAGES * size:
            return False
        start = self._cached(keys, limit, adapter)
        if limit - start < LEAST_PAGES * size:
            return False
        self._queries += limit - start
        generation = self._generation

        def resume(fetched: Fetched | None) -> None:
            self._resume(partial(self._fetched, keys, adapter, generation, fetched, then))

        self._tiers.fetch(Wanted(keys[:limit], digest, start), resume)
        return True

    def _fetched(
        self,
        keys: Items[int],
        adapter: str | None,
        generation: int,
        fetched: Fetched | None,
        then: Callable[[], None],
    ) -> None:
        if fetched is not None and generation == self._generation:
            try:
                self._restore(keys[: fetched.length], adapter, fetched)
            except NearfarError as error:
                # The prompt is computed instead.
                log_event("kv_restore_failed", logging.ERROR, error=error.message)
        then()

    def _restore(self, keys: Items[int], adapter: str | None, fetched: Fetched) -> None:
        start, size = self._cached(keys, len(keys), adapter), self._kv.page_size
        if start >= len(keys):
            return
        data = fetched.data
        if start != fetched.start:
            # The first pages may have been evicted meanwhile.
            units = []
            for index, kind in enumerate(self._kv.kinds):
                first = max(start // size, kind.unread(len(keys)))
                units += [fetched.units.get((index, page)) for page in range(first, len(keys) // size)]
            found = [unit for unit in units if unit is not None]
            if len(found) < len(units):
                return
            data = b"".join(found)
        if write_block(self._kv, self.write_pages, keys, PageBlock(start, len(keys), data), adapter):
            self._restored += len(keys) - start

    def _cached(self, keys: Items[int], limit: int, adapter: str | None) -> int:
        """How many tokens the cache has, in whole pages."""
        length = self._kv.prefixes.find(keys, limit, adapter).length
        return length if length % self._kv.page_size == 0 else 0
