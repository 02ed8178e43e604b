"""Pages and the prefix cache against plain dictionaries, for any order of calls."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nearfar.compiler.runtime.page_groups import PageGroup
from nearfar.server_fallback.engine.cache_kind import Node, Prefix
from nearfar.server_fallback.engine.pages import Pages, PageTable
from nearfar.server_fallback.engine.prefix_cache import PrefixCache

SIZE, PAGE = 12, 2
Known = tuple[str | None, tuple[int, ...]]


def pages_of(group: PageGroup, page_size: int, index: int = 0) -> Pages:
    return Pages(index, group, page_size, context=64, max_tokens=64)


class Holder:
    """The pages of a sequence, whose tokens fill complete pages."""

    def __init__(self, adapter: str | None = None, tokens: tuple[int, ...] = (), kinds: int = 1) -> None:
        self.adapter, self.keys = adapter, list(tokens)
        self.tables = [PageTable() for _ in range(kinds)]
        self.path: list[Node] = []

    @property
    def pages(self) -> list[int]:
        return list(self.tables[0].pages)


class PoolAndCache(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = pages_of(PageGroup(SIZE), PAGE)
        self.cache = PrefixCache([self.pool], PAGE)
        self.holders: list[Holder] = []
        # The cached prefixes with their pages, and the order of their last use.
        self.known: dict[Known, int] = {}
        self.used: dict[Known, int] = {}
        self.clock = 0

    @rule(adapter=st.sampled_from([None, "a"]), tokens=st.lists(st.integers(0, 1), min_size=2, max_size=8))
    def start(self, adapter: str | None, tokens: list[int]) -> None:
        holder = Holder(adapter)
        expected: list[int] = []
        for end in range(PAGE, len(tokens) + 1, PAGE):
            page = self.known.get((adapter, tuple(tokens[:end])))
            if page is None:
                break
            expected.append(page)
        prefix = self.cache.find(tokens, len(tokens), adapter)
        assert prefix.length == PAGE * len(expected)
        self.pool.restore(holder, prefix)
        assert holder.pages == expected
        holder.keys = tokens[: prefix.length]
        self.cache.insert(holder, len(expected))
        self.holders.append(holder)
        self.touch(holder)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=2, max_size=2))
    def grow(self, data: st.DataObject, tokens: list[int]) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        if self.pool.free == 0 and not self.evict_oldest():
            return
        end = len(holder.keys) + PAGE
        self.pool.reserve(holder, len(holder.keys), end, end)
        holder.keys += tokens
        pages = holder.pages
        self.cache.insert(holder, len(pages))
        for index, page in enumerate(pages):
            known = (holder.adapter, tuple(holder.keys[: (index + 1) * PAGE]))
            # The page that was cached first stays.
            assert holder.pages[index] == self.known.setdefault(known, page)
        self.touch(holder)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), wrong=st.booleans())
    def leave(self, data: st.DataObject, wrong: bool) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        if wrong:
            self.cache.discard(holder)
            held = {page for other in self.holders for page in other.pages}
            for end in range(len(holder.keys), 0, -PAGE):
                known = (holder.adapter, tuple(holder.keys[:end]))
                if self.known.get(known) in held or any(self.is_behind(other, known) for other in self.known):
                    break
                self.known.pop(known, None)
        else:
            self.cache.leave(holder)

    @rule()
    def evict(self) -> None:
        self.evict_oldest()

    @rule()
    def clear(self) -> None:
        for holder in self.holders:
            self.cache.leave(holder)
        self.holders.clear()
        self.cache.clear()
        self.known.clear()

    @invariant()
    def every_page_has_its_users(self) -> None:
        users = Counter(page for holder in self.holders for page in holder.pages)
        users.update(self.known.values())
        assert {page: self.pool.users[page] for page in range(SIZE)} == {page: users[page] for page in range(SIZE)}
        assert self.pool.free == SIZE - len(users)
        assert len(self.pool.nodes) == len(self.known)
        assert set(self.pool.idle) == {page for page in self.known.values() if users[page] == 1}

    def touch(self, holder: Holder) -> None:
        self.clock += 1
        for end in range(PAGE, len(holder.keys) + 1, PAGE):
            self.used[holder.adapter, tuple(holder.keys[:end])] = self.clock

    def evict_oldest(self) -> bool:
        held = {page for holder in self.holders for page in holder.pages}
        idle = [known for known, page in self.known.items() if page not in held]
        leaves = [known for known in idle if not any(self.is_behind(other, known) for other in self.known)]
        assert bool(self.pool.idle) == bool(leaves)
        if leaves:
            self.cache.evict(self.pool)
            del self.known[min(leaves, key=lambda known: self.used[known])]
        return bool(leaves)

    @staticmethod
    def is_behind(other: Known, known: Known) -> bool:
        return other != known and other[0] == known[0] and other[1][: len(known[1])] == known[1]


TestPoolAndCache = PoolAndCache.TestCase
TestPoolAndCache.settings = settings(max_examples=100, stateful_step_count=30, database=None)


def test_an_evicted_page_is_the_one_not_used_for_longest() -> None:
    pool = pages_of(PageGroup(4), 1)
    cache = PrefixCache([pool], 1)
    for token in (1, 2, 3):
        cache.leave(inserted(cache, pool, token))
    cache.find([1], 1)
    for _ in range(2):
        cache.evict(pool)
    assert [cache.find([token], 1).length for token in (1, 2, 3)] == [1, 0, 0]


def test_a_running_sequences_pages_are_never_evicted_and_count_as_used_when_it_leaves() -> None:
    pool = pages_of(PageGroup(4), 1)
    cache = PrefixCache([pool], 1)
    running = inserted(cache, pool, 1)
    cache.leave(inserted(cache, pool, 2))
    assert list(pool.idle) == [1]
    cache.leave(running)
    cache.evict(pool)
    assert [cache.find([token], 1).length for token in (1, 2)] == [1, 0]


def inserted(cache: PrefixCache, pool: Pages, token: int) -> Holder:
    """A sequence of one token, in the cache."""
    holder = Holder(tokens=(token,))
    pool.reserve(holder, 0, 1, 1)
    cache.insert(holder, 1)
    return holder


def test_a_prefix_needs_only_the_pages_within_the_window_before_its_end() -> None:
    full, windowed = pages_of(PageGroup(8), 2), pages_of(PageGroup(8, window=3), 2, index=1)
    cache = PrefixCache([full, windowed], 2)
    holder = Holder(tokens=(1, 2, 3, 4, 5, 6), kinds=2)
    for kind in (full, windowed):
        kind.reserve(holder, 0, 6, 6)
    cache.insert(holder, 3)
    windowed.trim(holder, 6)
    assert (list(holder.tables[1].pages), holder.tables[1].dead) == ([0, 0, 2], 2)
    # The freed pages are in the cache until they are evicted.
    assert pages_in(cache.find(holder.keys, 4)) == [[0, 1], [0, 1]]
    for _ in range(2):
        cache.evict(windowed)
    assert not windowed.idle
    assert cache.find(holder.keys, 4).length == 0
    assert pages_in(cache.find(holder.keys, 6)) == [[0, 1, 2], [None, None, 2]]
    cache.leave(holder)
    # Without its last page of the full layers, the prefix is shorter in both groups.
    cache.evict(full)
    assert (len(full.nodes), len(windowed.nodes)) == (2, 0)
    assert cache.find(holder.keys, 6).length == 0


def pages_in(prefix: Prefix) -> list[list[int | None]]:
    return [list(pages) for pages in zip(*(node.snapshots for node in prefix.path), strict=True)]


def test_a_shared_page_is_free_after_its_last_user_and_not_before() -> None:
    pool = pages_of(PageGroup(2), PAGE)
    first, second, third, fourth = (Holder() for _ in range(4))
    pool.reserve(first, 0, PAGE, PAGE)
    for other in (second, third):
        pool.restore(other, Prefix(PAGE, [], first))
    assert (pool.free, pool.users[first.pages[0]]) == (1, 3)
    for holder in (first, second):
        pool.drop(holder)
    assert (pool.free, pool.users[third.pages[0]]) == (1, 1)
    pool.reserve(fourth, 0, PAGE, PAGE)
    assert fourth.pages != third.pages
    pages = third.pages
    pool.drop(third)
    assert pool.free == 1
    pool.reserve(second, 0, PAGE, PAGE)
    assert second.pages == pages
