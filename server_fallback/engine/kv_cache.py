"""The KV cache as sequences see it: which pages each of them holds, and which of these it shares with others."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import NamedTuple

from .page_pool import PagePool
from .prefix_cache import PrefixCache
from .sequence import RUNNING, Sequence


class Prefix(NamedTuple):
    """The first ``length`` tokens of a sequence are computed already, in ``pages`` of the prefix cache (``cached``) or
    of its leader.
    """

    length: int
    pages: Items[int]
    cached: bool


class KvCache:
    """A page pool and a prefix cache, with the rules for sharing, copying and evicting their pages."""

    def __init__(self, num_pages: int, page_size: int, context: int) -> None:
        self.page_size = page_size
        self.pool = PagePool(num_pages)
        self.prefixes = PrefixCache(self.pool, page_size, partial_pages=page_size >= context)

    @property
    def available(self) -> int:
        """Pages that are free or can be evicted."""
        return self.pool.free + self.prefixes.evictable

    def unfilled(self, running: Iterable[Sequence]) -> int:
        """Positions in the running sequences' pages that hold no token."""
        return sum(max(0, len(sequence.pages) * self.page_size - sequence.computed) for sequence in running)

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def find_prefix(self, sequence: Sequence) -> Prefix:
        """The longest prefix of a waiting sequence's tokens that is computed already."""
        limit, leader, params = sequence.max_cached, sequence.leader, sequence.params
        pages, length = self.prefixes.longest(sequence.tokens, limit, params.adapter, partial_page=params.partial_page)
        if (
            leader is not None
            and leader.state == RUNNING
            and leader.params.context_shift is None
            and sequence.generated == 0
        ):
            # The leader's rows in the step being built all follow its prompt, so what is shared was computed in earlier
            # steps.
            shared = min(leader.computed, limit)
            if shared > length:
                return Prefix(shared, leader.pages[: self.pages_for(shared)], cached=False)
        return Prefix(length, pages, cached=True)

    def fits(self, sequence: Sequence, prefix: Prefix, running: Iterable[Sequence]) -> bool:
        """Whether there are pages for a sequence's known tokens and one more, beside those that running ones need for
        the same.
        """
        promised = sum(max(0, self.pages_for(other.length + 1) - len(other.pages)) for other in running)
        needed = promised + self.pages_for(len(sequence.tokens) + 1) - len(prefix.pages)
        # Its prefix must not be evicted; the last page of a leader's prefix may have to be copied.
        needed += sum(self.pool.users[page] == 1 for page in prefix.pages) if prefix.cached else 1
        return needed <= self.available

    def start(self, sequence: Sequence, prefix: Prefix) -> None:
        """Let a sequence start from a prefix."""
        for page in prefix.pages:
            self.pool.share(page)
            sequence.pages.append(page)
        sequence.computed = prefix.length
        if sequence.last_step < 0:
            sequence.cached_tokens = prefix.length

    def prepare(self, sequence: Sequence, copies: list[tuple[int, int]]) -> None:
        """Before a row is scheduled: use pages that others have filled meanwhile, and copy a shared page before it is
        written to.
        """
        pages, index = sequence.pages, sequence.computed // self.page_size
        if index < len(pages):
            if self.pool.users[pages[index]] > 1:
                self._make_writable(sequence, index, copies)
        elif sequence.missing > 1:
            self._extend_prefix(sequence)

    def _make_writable(self, sequence: Sequence, index: int, copies: list[tuple[int, int]]) -> None:
        """Copy on write. Without a free page, the positions of the shared page are computed again."""
        pages, shared = sequence.pages, sequence.pages[index]
        # The partly filled page of the request before it is continued, not copied.
        if sequence.params.partial_page and self.prefixes.detach(shared, partial_only=True):
            return
        if self.pool.free > 0 or self.prefixes.evict():
            pages[index] = self.pool.allocate()
            copies.append((shared, pages[index]))
        elif self.prefixes.detach(shared):
            return
        else:
            # Only the last token in flight is on the device, in the sequence's slot.
            assert sequence.in_flight <= 1, "a page that holds tokens in flight cannot be computed again"
            del pages[index:]
            sequence.computed = index * self.page_size
        self.prefixes.release(shared)

    def _extend_prefix(self, sequence: Sequence) -> None:
        """Continue with full pages that another sequence with the same prefix has filled."""
        limit, held = sequence.max_cached // self.page_size, len(sequence.pages)
        pages = self.prefixes.match(sequence.tokens, limit, sequence.params.adapter)[held:]
        for page in pages:
            self.pool.share(page)
            sequence.pages.append(page)
        sequence.computed += len(pages) * self.page_size
        if sequence.generated == 0:
            sequence.cached_tokens += len(pages) * self.page_size

    def reserve(self, sequence: Sequence, length: int) -> bool:
        """Allocate pages for the first ``length`` positions, evicting cached ones. False if there are too few."""
        missing = -(-length // self.page_size) - len(sequence.pages)
        if missing <= 0:
            return True
        while self.pool.free < missing:
            if not self.prefixes.evict():
                return False
        sequence.pages.extend([self.pool.allocate() for _ in range(missing)])
        return True

    def capacity(self, sequence: Sequence, *, evict: bool) -> int:
        """How many positions fit in a sequence's pages and the free ones; with ``evict``, in those that can be evicted
        as well.
        """
        return (len(sequence.pages) + (self.available if evict else self.pool.free)) * self.page_size

    def cache_pages(self, sequence: Sequence) -> None:
        """Let other sequences find the full pages of known tokens."""
        position, known = sequence.cache_position, len(sequence.tokens)
        full = (sequence.computed if sequence.computed < known else known) // self.page_size
        if full > position.depth:
            self.prefixes.insert(position, sequence.tokens, sequence.pages, full, sequence.params.adapter)
        else:
            self.prefixes.touch(position)

    def release(self, sequence: Sequence) -> None:
        """Give up a sequence's pages; the cache keeps those that it can use."""
        tokens, params = sequence.tokens[: sequence.computed], sequence.params
        self.prefixes.retire(
            sequence.cache_position, tokens, sequence.pages, params.adapter, partial_page=params.partial_page
        )
        del sequence.pages[:]

    def restart(self, sequence: Sequence) -> None:
        """Give up a sequence's pages because its tokens have changed."""
        self.prefixes.leave(sequence.cache_position, sequence.pages)
        del sequence.pages[:]
        sequence.computed = 0

    def discard(self, sequence: Sequence) -> None:
        """Give up a sequence's pages because their contents are wrong."""
        self.prefixes.discard(sequence.cache_position, sequence.pages)
        del sequence.pages[:]
