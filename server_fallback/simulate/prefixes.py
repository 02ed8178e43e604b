"""Keys and values that move: what a worker's cache takes over from another one, block by block, and a store that
workers share.

Both are the engine's own cache of pages and prefixes, so what is found, kept and evicted follows its rules.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items

from nearfar.compiler.runtime.page_groups import PageGroup

from ..engine.config import SchedulerConfig
from ..engine.kv_cache import KvCache
from ..engine.page_blocks import block_tokens
from ..engine.sequence import Sequence
from ..executors.prefill_client import WRITES_AT_ONCE


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


class BlockImport:
    """The blocks of a prefix that arrive from a prefill worker, as `prefill_client.transfer` receives them: each is
    written between two steps of the engine, a few of them at once. ``call`` is that of the engine's `Worker`, and
    ``done`` is called when the last block is written. ``ends`` are the positions at which the blocks end.
    """

    def __init__(self, start: int, end: int, call: Callable[[Callable[[], None]], None], done: Callable[[], None]):
        size = block_tokens(end)
        self.start, self.ends = start, [*range(start + size, end, size), end]
        self._call, self._done = call, done
        self._arrived = self._begun = self._written = 0

    def arrived(self) -> None:
        """The next block is here."""
        self._arrived += 1
        self._write()

    def _write(self) -> None:
        while self._begun < min(self._arrived, self._written + WRITES_AT_ONCE):
            self._begun += 1
            self._call(self._end)

    def _end(self) -> None:
        self._written += 1
        if self._written == len(self.ends):
            self._done()
        else:
            self._write()


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
