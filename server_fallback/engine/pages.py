"""Pages: a cache kind for keys and values, of layers with or without a window. Kwon et al. 2023."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items

from nearfar.compiler.runtime.page_groups import PageGroup, dead_pages, pages_of_sequence

from .cache_kind import Holder, Node, Prefix, Units


class PageTable:
    """The pages of one sequence, in the order of the positions they hold. The first ``dead`` were given back because
    they lie behind the window: their entries are 0, and are never read.
    """

    __slots__ = ("dead", "pages")

    def __init__(self) -> None:
        self.pages = array("i")
        self.dead = 0

    @property
    def live(self) -> Items[int]:
        """The pages that the sequence holds."""
        return self.pages[self.dead :]


class Pages(Units):
    """The pages of a page group, the cache kind ``index``; see `CacheKind`."""

    is_exact = False
    table = PageTable

    def __init__(self, index: int, group: PageGroup, page_size: int, context: int, max_tokens: int) -> None:
        super().__init__(index, group.pages)
        self.window = group.window
        self.is_chain = group.window is None
        self._page_size = page_size
        self._most = pages_of_sequence(group.window, context, page_size, max_tokens)

    @property
    def free(self) -> int:
        return len(self._free)

    def unread(self, length: int) -> int:
        return dead_pages(self.window, length, self._page_size)

    def growth(self, holder: Holder, length: int) -> int:
        table = self._table(holder)
        return self._growth(len(table.pages), table.dead, length)

    def admission(self, prefix: Prefix, length: int) -> int:
        dead = self.unread(prefix.length)
        if prefix.leader is not None:
            # The last page may have to be copied.
            return 1 + self._growth(self._pages_for(prefix.length), dead, length)
        shared = [node.snapshots[self.index] for node in prefix.path]
        return self._growth(len(shared), dead, length) + sum(page in self.idle for page in shared[dead:])

    def _growth(self, held: int, dead: int, length: int) -> int:
        return max(0, min(self._pages_for(length) - dead, self._most) - (held - dead))

    def missing(self, holder: Holder, start: int, length: int, known: int) -> int:
        pages, index = self._table(holder).pages, start // self._page_size
        return self._is_shared(pages, index) + max(0, self._pages_for(length) - len(pages))

    def reserve(self, holder: Holder, start: int, length: int, known: int) -> None:
        pages, index = self._table(holder).pages, start // self._page_size
        if self._is_shared(pages, index):
            shared, pages[index] = pages[index], self._allocate()
            self.copies.append((shared, pages[index]))
            self._release(shared)
        pages.extend([self._allocate() for _ in range(self._pages_for(length) - len(pages))])

    def is_writable(self, holder: Holder, start: int, known: int) -> bool:
        table, index = holder.tables[self.index], start // self._page_size
        if index >= len(table.pages) or self.users[table.pages[index]] > 1:
            return False
        return self.window is None or self.unread(min(start, known)) <= table.dead

    def trim(self, holder: Holder, length: int) -> None:
        table = self._table(holder)
        for index in range(table.dead, min(self.unread(length), len(table.pages))):
            self._release(table.pages[index])
            table.pages[index], table.dead = 0, index + 1

    def skip(self, holder: Holder, length: int) -> None:
        """Let a holder of fewer tokens continue after ``length``, without the pages that nothing reads from then on."""
        table, dead = self._table(holder), self.unread(length)
        self.trim(holder, length)
        table.pages.extend([0] * (dead - len(table.pages)))
        table.dead = max(dead, table.dead)

    def can_fork(self, holder: Holder, length: int) -> bool:
        return self._table(holder).dead <= self.unread(length)

    def rewind(self, holder: Holder, length: int) -> int:
        pages = self._table(holder).pages
        while len(pages) > self._pages_for(length):
            self._release(pages.pop())
        return length

    def held(self, holder: Holder) -> list[int]:
        """A holder's pages, in the order of the positions."""
        return self._table(holder).pages.tolist()

    def drop(self, holder: Holder) -> None:
        table = self._table(holder)
        cached = [page for page in table.live if page in self.nodes]
        if self.is_chain:
            # Its last page is evicted first, so it becomes idle first.
            cached.reverse()
        for page in (*cached, *(page for page in table.live if page not in self.nodes)):
            self._release(page)
        del table.pages[:]
        table.dead = 0

    def snapshot(self, holder: Holder, node: Node, index: int) -> None:
        """If the node has a snapshot already, the holder uses that."""
        table, cached = self._table(holder), node.snapshots[self.index]
        if index < table.dead:
            return
        page = table.pages[index]
        if cached is None:
            self._cache(page, node)
        elif cached != page:
            self._use(cached)
            self._release(page)
            table.pages[index] = cached

    def restore(self, holder: Holder, prefix: Prefix) -> None:
        if prefix.leader is None:
            self._share(holder, [node.snapshots[self.index] or 0 for node in prefix.path], prefix.length)
        else:
            pages = self._table(prefix.leader).pages[: self._pages_for(prefix.length)]
            self._share(holder, pages, prefix.length)

    def node_of(self, holder: Holder, index: int) -> Node | None:
        pages = self._table(holder).pages
        return self.nodes.get(pages[index]) if index < len(pages) else None

    def _pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._page_size)

    def _table(self, holder: Holder) -> PageTable:
        table: PageTable = holder.tables[self.index]
        return table

    def _is_shared(self, pages: Items[int], index: int) -> bool:
        return index < len(pages) and self.users[pages[index]] > 1

    def _share(self, holder: Holder, pages: Items[int], length: int) -> None:
        """Continue with the pages of a longer prefix, as another user of those that are read."""
        table, dead = self._table(holder), self.unread(length)
        held = len(table.pages)
        self.trim(holder, length)
        table.pages.extend([0 if index < dead else pages[index] for index in range(held, len(pages))])
        table.dead = max(dead, table.dead)
        for page in pages[max(held, dead) :]:
            self._use(page)
