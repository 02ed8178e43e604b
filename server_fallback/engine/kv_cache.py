"""The KV cache for sequences: the pages that each sequence holds, and the pages that it shares with others."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import NamedTuple

from nearfar.compiler.runtime.page_groups import pages_of_sequence

from .config import SchedulerConfig
from .page_pool import PagePool
from .page_table import PageTable
from .prefix_cache import PrefixCache
from .sequence import RUNNING, Sequence

# By page group, the (source, destination) pairs of pages to copy.
PageCopies = list[list[tuple[int, int]]]


class Prefix(NamedTuple):
    """The first ``length`` tokens of a sequence are computed already: by group, in ``pages`` of the prefix cache
    (``cached``) or of its leader; 0 for those behind the window.
    """

    length: int
    pages: Items[Items[int]]
    cached: bool


class KvCache:
    """A page pool for each group and a prefix cache, with the rules for sharing, copying and evicting their pages."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.page_size = config.page_size
        self.pools = [PagePool(group, config.page_size) for group in config.groups]
        self.prefixes = PrefixCache(self.pools, config.page_size, partial_pages=config.page_size >= config.context)
        self._most_pages = [
            pages_of_sequence(pool.window, config.context, config.page_size, config.max_tokens) for pool in self.pools
        ]

    def unfilled(self, running: Iterable[Sequence]) -> int:
        """Positions in the running sequences' pages that hold no token."""
        tables = ((sequence, table) for sequence in running for table in sequence.tables[:1])
        return sum(max(0, len(table.pages) * self.page_size - sequence.computed) for sequence, table in tables)

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def find_prefix(self, sequence: Sequence) -> Prefix:
        """The longest prefix of a waiting sequence's tokens that is computed already."""
        limit, leader, params = sequence.max_cached, sequence.leader, sequence.params
        length, pages = self.prefixes.longest(sequence.tokens, limit, params.adapter, partial_page=params.partial_page)
        if (
            leader is not None
            and leader.state == RUNNING
            and leader.params.context_shift is None
            and sequence.generated == 0
        ):
            # The leader's rows in the step being built all follow its prompt, so what is shared was computed in earlier
            # steps.
            shared = min(leader.computed, limit)
            if shared > length and all(table.dead <= table.pool.dead_pages(shared) for table in leader.tables):
                return Prefix(shared, [table.pages[: self.pages_for(shared)] for table in leader.tables], cached=False)
        return Prefix(length, pages, cached=True)

    def fits(self, sequence: Sequence, prefix: Prefix, running: Iterable[Sequence]) -> bool:
        """Whether there are pages for a sequence's known tokens and one more, beside those that running ones need for
        the same.
        """
        others = list(running)
        return all(self._fits(group, sequence, prefix, others) for group in range(len(self.pools)))

    def _fits(self, group: int, sequence: Sequence, prefix: Prefix, running: Items[Sequence]) -> bool:
        pool, most = self.pools[group], self._most_pages[group]
        needed = 0
        for other in running:
            table = other.tables[group]
            pages = min(self.pages_for(other.length + 1) - table.dead, most)
            needed += max(0, pages - (len(table.pages) - table.dead))
        dead, shared = pool.dead_pages(prefix.length), prefix.pages[group]
        pages = min(self.pages_for(len(sequence.tokens) + 1) - dead, most)
        needed += max(0, pages - (len(shared) - dead))
        # Its prefix must not be evicted; the last page of a leader's prefix may have to be copied.
        needed += sum(pool.users[page] == 1 for page in shared[dead:]) if prefix.cached else 1
        return needed <= pool.available

    def start(self, sequence: Sequence, prefix: Prefix) -> None:
        """Let a sequence start from a prefix."""
        sequence.tables = [PageTable(pool) for pool in self.pools]
        self._extend(sequence, prefix.length, prefix.pages)
        sequence.computed = prefix.length
        if sequence.last_step < 0:
            sequence.cached_tokens = prefix.length

    def can_write(self, sequence: Sequence, position: int) -> bool:
        """Whether a sequence has a page of its own for a position in each group, and no page behind the window to give
        back, so that neither `prepare` nor `reserve` would change anything.
        """
        index = position // self.page_size
        for table in sequence.tables:
            pool, pages = table.pool, table.pages
            if index >= len(pages) or pool.users[pages[index]] > 1:
                return False
            if pool.window is not None and pool.dead_pages(min(position, len(sequence.tokens))) > table.dead:
                return False
        return True

    def prepare(self, sequence: Sequence, copies: PageCopies) -> None:
        """Call before a row is scheduled: frees the pages behind the window, uses pages that other sequences have
        filled meanwhile, and copies a shared page before the sequence writes to it.
        """
        tables, index = sequence.tables, sequence.computed // self.page_size
        for table in tables:
            if table.pool.window is not None:
                # After a stop token or a wrong draft, the sequence continues from its known tokens.
                table.give_back(min(sequence.computed, len(sequence.tokens)))
        if index < len(tables[0].pages):
            if any(table.pool.users[table.pages[index]] > 1 for table in tables):
                self._make_writable(sequence, index, copies)
        elif sequence.missing > 1:
            self._extend_prefix(sequence)

    def _make_writable(self, sequence: Sequence, index: int, copies: PageCopies) -> None:
        """Copy on write. Without a free page, the positions after the cached pages are computed again."""
        tables = sequence.tables
        # The partly filled page of the previous request is continued, not copied.
        if sequence.params.partial_page:
            self.prefixes.detach(tables, index, partial_only=True)
        for group, (pool, table) in enumerate(zip(self.pools, tables, strict=True)):
            shared = table.pages[index]
            if pool.users[shared] == 1:
                continue
            if pool.free > 0 or self.prefixes.evict(group):
                table.pages[index] = pool.allocate()
                copies[group].append((shared, table.pages[index]))
                pool.release(shared)
            elif not (self.prefixes.detach(tables, index) and pool.users[shared] == 1):
                # Only the last token in flight is on the device, in the sequence's slot.
                assert sequence.in_flight <= 1, "a page that holds tokens in flight cannot be computed again"
                self.restart(sequence)
                self._extend_prefix(sequence)
                return

    def _extend_prefix(self, sequence: Sequence) -> None:
        """Continue with full pages that another sequence with the same prefix has filled."""
        limit = sequence.max_cached // self.page_size
        length, pages = self.prefixes.match(sequence.tokens, limit, sequence.params.adapter)
        more = length - sequence.computed
        if more <= 0:
            return
        self._extend(sequence, length, pages)
        sequence.computed += more
        if sequence.generated == 0:
            sequence.cached_tokens += more

    @staticmethod
    def _extend(sequence: Sequence, length: int, pages: Items[Items[int]]) -> None:
        for table, own in zip(sequence.tables, pages, strict=True):
            table.extend(own, table.pool.dead_pages(length))

    def reserve(self, sequence: Sequence, length: int) -> bool:
        """Allocate pages for the first ``length`` positions, evicting cached ones. False if there are too few."""
        count = self.pages_for(length)
        for group, table in enumerate(sequence.tables):
            missing = count - len(table.pages)
            while table.pool.free < missing:
                if not self.prefixes.evict(group):
                    return False
        for table in sequence.tables:
            table.allocate(max(0, count - len(table.pages)))
        return True

    def capacity(self, sequence: Sequence, *, evict: bool) -> int:
        """The number of positions that fit in a sequence's pages and the free ones; with ``evict``, also in those that
        can be evicted.
        """
        pages = min(
            len(table.pages) + (table.pool.available if evict else table.pool.free) for table in sequence.tables
        )
        return pages * self.page_size

    def cache_pages(self, sequence: Sequence) -> None:
        """Let other sequences find the full pages of known tokens."""
        position, known, computed = sequence.cache_position, len(sequence.tokens), sequence.computed
        full = (computed if computed < known else known) // self.page_size
        if full > position.depth:
            self.prefixes.insert(position, sequence.tokens, sequence.tables, full, sequence.params.adapter)
        else:
            position.last_used = self.prefixes.tick()

    def release(self, sequence: Sequence) -> None:
        """Give up a sequence's pages; the cache keeps those that it can use."""
        tokens, params = sequence.tokens[: sequence.computed], sequence.params
        self.prefixes.retire(
            sequence.cache_position, tokens, sequence.tables, params.adapter, partial_page=params.partial_page
        )

    def restart(self, sequence: Sequence) -> None:
        """Give up a sequence's pages, so that it is computed from its start."""
        self.prefixes.leave(sequence.cache_position, sequence.tables)
        sequence.computed = 0
        if sequence.generated == 0:
            sequence.cached_tokens = 0

    def discard(self, sequence: Sequence) -> None:
        """Give up a sequence's pages because their contents are wrong."""
        self.prefixes.discard(sequence.cache_position, sequence.tables)
