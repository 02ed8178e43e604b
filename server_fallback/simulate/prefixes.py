"""Keys and values that move: what a worker's cache takes over from another one, and a store that workers share.

Both are the engine's own cache of pages and prefixes, so what is found, kept and evicted follows its rules.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from nearfar.compiler.runtime.page_groups import PageGroup

from ..engine.config import SchedulerConfig
from ..engine.kv_cache import KvCache
from ..engine.sequence import Sequence


def adopt(kv: KvCache, tokens: Items[int]) -> int:
    """Put the full pages of these tokens into a cache, and return how many tokens it holds of them now: fewer if there
    is no room beside those in use.
    """
    sequence = Sequence(-1, tokens)
    full = len(tokens) // kv.page_size * kv.page_size
    kv.start(sequence, kv.prefixes.find(tokens, full))
    if sequence.computed < full and kv.reserve(sequence, full):
        sequence.computed = full
        kv.cache_pages(sequence)
    held = sequence.computed
    kv.release(sequence)
    return held


class PrefixStore:
    """Prefixes outside of the devices, in the memory of hosts: ``tokens`` of them at most, the least recently used
    leave first. ``hits`` and ``queries`` count tokens.
    """

    def __init__(self, tokens: int, page_size: int) -> None:
        pages = tokens // page_size
        config = SchedulerConfig(page_size, [PageGroup(pages)], max_tokens=tokens, max_sequences=1, context=tokens)
        self._kv = KvCache(config)
        self.capacity = pages * page_size
        self.hits = self.queries = 0

    def find(self, tokens: Items[int]) -> int:
        """How many tokens of a prompt it holds, as full pages; the last token of a prompt must be computed."""
        found = self._kv.prefixes.find(tokens, len(tokens) - 1).length
        self.hits += found
        self.queries += len(tokens)
        return found

    def put(self, tokens: Items[int]) -> None:
        adopt(self._kv, tokens[: self.capacity])
