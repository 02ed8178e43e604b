"""The page pool and the prefix cache against plain dictionaries, for any order of calls."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nearfar.compiler.runtime.page_groups import PageGroup
from nearfar.server_fallback.engine.page_pool import PagePool
from nearfar.server_fallback.engine.page_table import PageTable
from nearfar.server_fallback.engine.prefix_cache import CachePosition, PrefixCache

SIZE, PAGE = 12, 2
Known = tuple[str | None, tuple[int, ...]]


class Holder:
    """The pages of a sequence, whose tokens fill complete pages."""

    def __init__(self, adapter: str | None, pool: PagePool) -> None:
        self.adapter = adapter
        self.tokens: list[int] = []
        self.tables = [PageTable(pool)]
        self.position = CachePosition()

    @property
    def pages(self) -> list[int]:
        return list(self.tables[0].pages)


class PoolAndCache(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PageGroup(SIZE), PAGE)
        self.cache = PrefixCache([self.pool], PAGE)
        self.holders: list[Holder] = []
        # The cached prefixes with their pages, and the order of their last use.
        self.known: dict[Known, int] = {}
        self.used: dict[Known, int] = {}
        self.clock = 0

    @rule(adapter=st.sampled_from([None, "a"]), tokens=st.lists(st.integers(0, 1), min_size=2, max_size=8))
    def start(self, adapter: str | None, tokens: list[int]) -> None:
        holder = Holder(adapter, self.pool)
        expected: list[int] = []
        for end in range(PAGE, len(tokens) + 1, PAGE):
            page = self.known.get((adapter, tuple(tokens[:end])))
            if page is None:
                break
            expected.append(page)
        match = self.cache.match(tokens, len(tokens) // PAGE, adapter)
        assert match == (PAGE * len(expected), [expected])
        holder.tables[0].extend(expected, 0)
        holder.tokens = tokens[: match.length]
        self.cache.insert(holder.position, holder.tokens, holder.tables, len(expected), adapter)
        self.holders.append(holder)
        self.touch(holder)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=2, max_size=2))
    def grow(self, data: st.DataObject, tokens: list[int]) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        if self.pool.free == 0 and not self.evict_oldest():
            return
        holder.tables[0].allocate(1)
        holder.tokens += tokens
        pages = holder.pages
        self.cache.insert(holder.position, holder.tokens, holder.tables, len(pages), holder.adapter)
        for index, page in enumerate(pages):
            known = (holder.adapter, tuple(holder.tokens[: (index + 1) * PAGE]))
            # The page that was cached first stays.
            assert holder.pages[index] == self.known.setdefault(known, page)
        self.touch(holder)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), wrong=st.booleans())
    def leave(self, data: st.DataObject, wrong: bool) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        if wrong:
            self.cache.discard(holder.position, holder.tables)
            held = {page for other in self.holders for page in other.pages}
            for end in range(len(holder.tokens), 0, -PAGE):
                known = (holder.adapter, tuple(holder.tokens[:end]))
                if self.known.get(known) in held or any(self.is_behind(other, known) for other in self.known):
                    break
                self.known.pop(known, None)
        else:
            self.cache.leave(holder.position, holder.tables)

    @rule()
    def evict(self) -> None:
        self.evict_oldest()

    @rule()
    def clear(self) -> None:
        for holder in self.holders:
            self.cache.leave(holder.position, holder.tables)
        self.holders.clear()
        self.cache.clear()
        self.known.clear()

    @invariant()
    def every_page_has_its_users(self) -> None:
        users = Counter(page for holder in self.holders for page in holder.pages)
        users.update(self.known.values())
        assert {page: self.pool.users[page] for page in range(SIZE)} == {page: users[page] for page in range(SIZE)}
        assert self.pool.free == SIZE - len(users)
        assert self.cache.num_pages() == len(self.known)
        assert self.pool.idle == sum(users[page] == 1 for page in self.known.values())

    def touch(self, holder: Holder) -> None:
        self.clock += 1
        for end in range(PAGE, len(holder.tokens) + 1, PAGE):
            self.used[holder.adapter, tuple(holder.tokens[:end])] = self.clock

    def evict_oldest(self) -> bool:
        held = {page for holder in self.holders for page in holder.pages}
        idle = [known for known, page in self.known.items() if page not in held]
        leaves = [known for known in idle if not any(self.is_behind(other, known) for other in self.known)]
        assert self.cache.evict() == bool(leaves)
        if leaves:
            del self.known[min(leaves, key=lambda known: self.used[known])]
        return bool(leaves)

    @staticmethod
    def is_behind(other: Known, known: Known) -> bool:
        return other != known and other[0] == known[0] and other[1][: len(known[1])] == known[1]


TestPoolAndCache = PoolAndCache.TestCase
TestPoolAndCache.settings = settings(max_examples=100, stateful_step_count=30, deadline=None, database=None)


def test_an_evicted_page_is_the_one_not_used_for_longest() -> None:
    pool = PagePool(PageGroup(4), 1)
    cache = PrefixCache([pool], 1)
    for token in (1, 2, 3):
        cache.leave(*inserted(cache, pool, token))
    cache.match([1], 1)
    assert [cache.evict() for _ in range(2)] == [True, True]
    assert [cache.match([token], 1).pages for token in (1, 2, 3)] == [[[0]], [[]], [[]]]


def test_a_running_sequences_pages_are_never_evicted_and_count_as_used_when_it_leaves() -> None:
    pool = PagePool(PageGroup(4), 1)
    cache = PrefixCache([pool], 1)
    running, held = inserted(cache, pool, 1)
    cache.leave(*inserted(cache, pool, 2))
    cache.insert(running, [1], held, 1)
    cache.leave(running, held)
    assert cache.evict()
    assert cache.match([1], 1).pages == [[0]]
    assert cache.match([2], 1).pages == [[]]


def inserted(cache: PrefixCache, pool: PagePool, token: int) -> tuple[CachePosition, list[PageTable]]:
    """A sequence of one token, in the cache."""
    position, tables = CachePosition(), [PageTable(pool)]
    tables[0].allocate(1)
    cache.insert(position, [token], tables, 1)
    return position, tables


def test_a_prefix_needs_only_the_pages_within_the_window_before_its_end() -> None:
    full, windowed = PagePool(PageGroup(8), 2), PagePool(PageGroup(8, window=3), 2)
    cache = PrefixCache([full, windowed], 2)
    position, tables, tokens = CachePosition(), [PageTable(full), PageTable(windowed)], [1, 2, 3, 4, 5, 6]
    for table in tables:
        table.allocate(3)
    cache.insert(position, tokens, tables, 3)
    tables[1].give_back(6)
    assert (list(tables[1].pages), tables[1].dead) == ([0, 0, 2], 2)
    # The freed pages are in the cache until they are evicted.
    assert cache.match(tokens, 2).pages == [[0, 1], [0, 1]]
    assert [cache.evict(1) for _ in range(3)] == [True, True, False]
    assert cache.match(tokens, 2) == (0, [[], []])
    assert cache.match(tokens, 3) == (6, [[0, 1, 2], [0, 0, 2]])
    cache.leave(position, tables)
    # Without its last page of the full layers, the prefix is shorter in both groups.
    assert cache.evict(0)
    assert (cache.num_pages(0), cache.num_pages(1)) == (2, 0)
    assert cache.match(tokens, 3).length == 0


def test_a_shared_page_is_free_after_its_last_user_and_not_before() -> None:
    pool = PagePool(PageGroup(2), PAGE)
    page = pool.allocate()
    pool.share(page)
    pool.share(page)
    assert (pool.free, pool.users[page]) == (1, 3)
    pool.release(page)
    pool.release(page)
    assert (pool.free, pool.users[page]) == (1, 1)
    assert pool.allocate() != page
    pool.release(page)
    assert pool.free == 1
    assert pool.allocate() == page
