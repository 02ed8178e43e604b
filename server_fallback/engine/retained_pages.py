"""Retained pages: what the prefix cache holds of some tokens, outside of the device. It is read here for another place,
and written into the prefix cache again, of this engine or of another one with the same bundle.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from concurrent.futures import Future
from dataclasses import dataclass

from nearfar.compiler.runtime.errors import RequestError

from .cache_kind import Prefix
from .kv_cache import KvCache
from .page_blocks import PageBlock, ReadPages, WritePages
from .page_imports import write_block

NOTHING = Prefix(0, [])


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
    block = PageBlock(0, length, pages.data)
    return length if write_block(kv, write, pages.token_ids, block, adapter) else 0
