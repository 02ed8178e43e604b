"""Retained pages: what the prefix cache holds of some tokens, outside of the device. It is read here for another place,
and written into the prefix cache again, of this engine or of another one with the same bundle.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import Future
from dataclasses import dataclass, replace

from nearfar.compiler.runtime.errors import NearfarError, RequestError

from .cache_kind import Prefix
from .kv_cache import KvCache
from .sequence import PLAIN, Sequence

NOTHING = Prefix(0, [])
# Those of `Runner`.
ReadPages = Callable[[Items[Items[int]]], Future[bytes]]
WritePages = Callable[[Items[Items[int]], bytes], None]


@dataclass(frozen=True, slots=True)
class RetainedPages:
    """``token_ids``, whole pages of them, as the prefix cache compares them; see `images.prompt_keys`. ``data``: their
    keys and values as `Runner.read_pages` reads them, without the first ``dead_pages`` of each page group, which no
    later token reads, and last the state at their end if the model keeps states. ``adapter``: the digest of the LoRA
    adapter that computed them; "" for none.
    """

    token_ids: Items[int]
    dead_pages: Items[int]
    adapter: str
    data: bytes


def read_retained(
    kv: KvCache, read: ReadPages, token_ids: Items[int], adapter: str | None = None
) -> tuple[RetainedPages, Future[bytes]]:
    """The longest cached prefix of some tokens, without its data, and the data. ``adapter``: its key."""
    found = kv.prefixes.find(token_ids, len(token_ids) // kv.page_size * kv.page_size, adapter)
    # With pages as long as the context, a prefix may end within one.
    found = found if found.length % kv.page_size == 0 else NOTHING
    dead = [pool.unread(found.length) for pool in kv.pages]
    units = [
        [node.snapshots[index] or 0 for node in found.path[kind.unread(found.length) :]]
        for index, kind in enumerate(kv.kinds)
    ]
    return RetainedPages(list(token_ids[: found.length]), dead, "", b""), read(units)


def write_retained(kv: KvCache, write: WritePages, pages: RetainedPages, adapter: str | None = None) -> int:
    """Write pages into the prefix cache, from which what has been idle for longest is evicted for them. Returns how
    many of the tokens are in it now, 0 without room. ``adapter``: the key of the adapter in this engine. Raises
    RequestError for pages of another model, and the runner's errors.
    """
    length = len(pages.token_ids)
    dead = [pool.unread(length) for pool in kv.pages]
    if length % kv.page_size > 0 or list(pages.dead_pages) != dead:
        raise RequestError(
            f"{length} tokens without the first {list(pages.dead_pages)} pages of each group do not fit this model, "
            f"whose pages have {kv.page_size} tokens, without the first {dead}; read them from the same bundle"
        )
    if length == 0 or kv.prefixes.find(pages.token_ids, length, adapter).length == length:
        return length
    return extend_prefix(kv, write, pages.token_ids, NOTHING, pages.data, adapter)


def extend_prefix(
    kv: KvCache, write: WritePages, token_ids: Items[int], start: Prefix, data: bytes, adapter: str | None
) -> int:
    """Write the pages of some tokens that follow a cached prefix of them, and the state at their end. Otherwise as
    `write_retained`.
    """
    sequence = Sequence(-1, token_ids, replace(PLAIN, adapter=adapter))
    length = sequence.computed = len(token_ids)
    sequence.tables = [kind.table() for kind in kv.kinds]
    for pool in kv.pages:
        pool.restore(sequence, start)
    sequence.path = list(start.path)
    held = [len(pool.held(sequence)) for pool in kv.pages]
    for pool in kv.pages:
        pool.skip(sequence, length)
    if not (kv.make_snapshot_room() and kv.reserve(sequence, length)):
        kv.restart(sequence)
        return 0
    units = [
        table.pages[max(first, table.dead) :].tolist() for first, table in zip(held, sequence.tables, strict=False)
    ]
    if kv.states is not None:
        units.append([kv.states.own(sequence)])
    try:
        write(units, data)
    except NearfarError:
        kv.restart(sequence)
        raise
    kv.cache_pages(sequence)
    kv.release(sequence)
    return kv.prefixes.find(token_ids, length, adapter).length
