"""Page imports: write page blocks to the prefix cache, from which a prompt starts as from any other that was computed
before. Also which units of an engine's memory a block consists of.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from .cache_kind import Prefix
from .kv_cache import KvCache
from .page_blocks import PageBlock, WritePages
from .sequence import Sequence, SequenceParams
from .states import StateTable


def first_position(kv: KvCache, start: int, end: int) -> int:
    """The first position from ``start`` on of whose page a sequence reads something after ``end``."""
    return min(end, max(start, min(pool.unread(end) for pool in kv.pages) * kv.page_size))


def units_of(kv: KvCache, sequence: Sequence, start: int, end: int, total: int) -> list[list[int]]:
    """What a sequence holds of the tokens from ``start`` up to ``end`` of a prefix of ``total``: its pages by group,
    and last the slot of its state if they end the prefix.
    """
    size, units = kv.page_size, list[list[int]]()
    for pool in kv.pages:
        first = max(start // size, pool.unread(total))
        units.append(pool.held(sequence)[first : end // size])
    if kv.states is not None:
        table = sequence.tables[-1]
        assert isinstance(table, StateTable)
        # After a row, the state is in the sequence's own slot. Before any, it is in the snapshot where it began.
        units.append([] if end < total else [table.source if table.length == total else table.slot])
    return units


def write_block(
    kv: KvCache, write_pages: WritePages, token_ids: Items[int], block: PageBlock, adapter: str | None
) -> bool:
    """Write a block of the prefix ``token_ids`` to the prefix cache, which has the tokens before it; ``adapter`` is the
    key of the adapter. What has been idle for longest is evicted for it. False if there is no room, or if pages before
    it have been evicted meanwhile; then nothing has changed.

    Each block is complete in itself: nothing is held between two of them, so nothing remains of a transfer that breaks
    off but pages that the cache may evict. Raises RequestError if the bytes are not those of these pages, and the
    runner's errors.
    """
    total = len(token_ids)
    path = kv.prefixes.nodes(token_ids, block.start, adapter)
    for pool in kv.pages:
        read = range(pool.unread(total), block.start // kv.page_size)
        if any(index >= len(path) or path[index].snapshots[pool.index] is None for index in read):
            return False
    sequence = Sequence(-1, token_ids[: block.end], SequenceParams(adapter=adapter))
    sequence.tables = [kind.table() for kind in kv.kinds]
    for pool in kv.pages:
        pool.skip(sequence, total)
        pool.restore(sequence, Prefix(block.start, path))
    sequence.path, sequence.computed = path, block.start
    try:
        if not _reserve(kv, sequence, block, total):
            return False
        write_pages(units_of(kv, sequence, block.start, block.end, total), block.data)
        sequence.computed = block.end
        kv.cache_pages(sequence)
        return True
    finally:
        # Before its pages are written, the sequence has nothing to leave in the cache.
        kv.release(sequence)


def _reserve(kv: KvCache, sequence: Sequence, block: PageBlock, total: int) -> bool:
    """Find pages for a block, and a slot for the state after the last one. False if there is too little room."""
    end = block.end
    starts = [(pool, max(block.start, pool.unread(total) * kv.page_size)) for pool in kv.pages]
    needed = [(pool, start) for pool, start in starts if start < end]
    if any(pool.missing(sequence, start, end, end) > pool.free + len(pool.idle) for pool, start in needed):
        return False
    if kv.states is not None and end == total:
        if not kv.make_snapshot_room():
            return False
        kv.states.reserve(sequence, block.start, end, end)
    for pool, start in needed:
        while pool.missing(sequence, start, end, end) > pool.free:
            kv.prefixes.evict(pool)
        pool.reserve(sequence, start, end, end)
    return True
