"""A cache kind: one kind of memory that a model keeps of each sequence from step to step.

Scheduler and prefix cache have a list of kinds, treat them alike, and use only the methods that all kinds have. Today
all are `Pages`: keys and values in pages (Kwon et al. 2023), of layers with or without a window. A page is free, or has
users: the sequences that hold it, and the prefix cache. A state that cannot go back has other snapshots: copies at the
ends of some nodes; `rewind` and `can_fork` say what can be continued.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence as Items
from typing import NamedTuple, Protocol, TypeAlias

from nearfar.compiler.runtime.page_groups import PageGroup, dead_pages, pages_of_sequence

Key = tuple[int, ...]
# (source, destination) pairs.
Copies = list[tuple[int, int]]


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


class Holder(Protocol):
    """A sequence, or its draft: ``tables`` are what it holds of each kind."""

    tables: list[PageTable]


class Node:
    """The tokens of a page in the prefix cache, which follow those of ``parent``, and by kind the snapshot at their
    end; None without it. ``siblings`` all follow ``parent``.
    """

    __slots__ = ("children", "key", "parent", "siblings", "snapshots")

    def __init__(self, key: Key, parent: Node | None, siblings: dict[Key, Node], num_kinds: int) -> None:
        self.key, self.parent, self.siblings = key, parent, siblings
        self.children: dict[Key, Node] = {}
        self.snapshots: list[int | None] = [None] * num_kinds
        siblings[key] = self

    @property
    def is_removed(self) -> bool:
        return self.siblings.get(self.key) is not self


class Prefix(NamedTuple):
    """The first ``length`` tokens of a sequence are computed already. They are in the nodes of ``path``, or if there is
    a ``leader``, in what it holds.
    """

    length: int
    path: list[Node]
    leader: Holder | None = None


class Pages:
    """The pages of the page group ``index``. ``users``: the number of users of each page. ``nodes``: by page, those of
    the prefix cache; ``idle``: those of them whose page nobody else uses, the one not used for longest first.

    ``copies``: pages to copy on the device before the next step. ``is_chain``: a prefix needs the snapshots of all its
    nodes; otherwise only the last ones are read.
    """

    def __init__(self, index: int, group: PageGroup, page_size: int, context: int, max_tokens: int) -> None:
        self.index, self.size, self.window = index, group.pages, group.window
        self.is_chain = group.window is None
        self.users = [0] * self.size
        self.copies: Copies = []
        self.idle: OrderedDict[int, Node] = OrderedDict()
        self.nodes: dict[int, Node] = {}
        self._page_size = page_size
        self._most = pages_of_sequence(group.window, context, page_size, max_tokens)
        # A stack: the page freed last is allocated first.
        self._free = list(range(self.size - 1, -1, -1))

    @property
    def free(self) -> int:
        """How many pages have no user."""
        return len(self._free)

    def unread(self, length: int) -> int:
        """How many nodes at the start of a prefix are not read by a sequence that continues after ``length`` tokens."""
        return dead_pages(self.window, length, self._page_size)

    def growth(self, holder: Holder, length: int) -> int:
        """How many more pages a holder can need for ``length`` tokens."""
        table = self._table(holder)
        return self._growth(len(table.pages), table.dead, length)

    def admission(self, prefix: Prefix, length: int) -> int:
        """The same for a sequence that starts from a prefix, with the pages that must not be evicted for it."""
        dead = self.unread(prefix.length)
        if prefix.leader is not None:
            # The last page may have to be copied.
            return 1 + self._growth(self._pages_for(prefix.length), dead, length)
        shared = [node.snapshots[self.index] for node in prefix.path]
        return self._growth(len(shared), dead, length) + sum(page in self.idle for page in shared[dead:])

    def _growth(self, held: int, dead: int, length: int) -> int:
        return max(0, min(self._pages_for(length) - dead, self._most) - (held - dead))

    def missing(self, holder: Holder, start: int, length: int) -> int:
        """How many pages `reserve` allocates."""
        pages, index = self._table(holder).pages, start // self._page_size
        return self._is_shared(pages, index) + max(0, self._pages_for(length) - len(pages))

    def reserve(self, holder: Holder, start: int, length: int) -> None:
        """Let a holder write its positions from ``start`` up to ``length``. The pages must be free."""
        pages, index = self._table(holder).pages, start // self._page_size
        if self._is_shared(pages, index):
            shared, pages[index] = pages[index], self._allocate()
            self.copies.append((shared, pages[index]))
            self._release(shared)
        pages.extend([self._allocate() for _ in range(self._pages_for(length) - len(pages))])

    def is_writable(self, holder: Holder, start: int, known: int) -> bool:
        """Whether neither `trim` nor `reserve` of the next position would change anything."""
        table, index = holder.tables[self.index], start // self._page_size
        if index >= len(table.pages) or self.users[table.pages[index]] > 1:
            return False
        return self.window is None or self.unread(min(start, known)) <= table.dead

    def trim(self, holder: Holder, length: int) -> None:
        """Release what no position from ``length`` on reads."""
        table = self._table(holder)
        for index in range(table.dead, min(self.unread(length), len(table.pages))):
            self._release(table.pages[index])
            table.pages[index], table.dead = 0, index + 1

    def can_fork(self, holder: Holder, length: int) -> bool:
        return self._table(holder).dead <= self.unread(length)

    def fork(self, holder: Holder, other: Holder, length: int) -> None:
        """Let ``other``, which holds nothing, continue after the first tokens of a holder, which goes on too."""
        self._share(other, self._table(holder).pages[: self._pages_for(length)], length)

    def rewind(self, holder: Holder, length: int) -> int:
        """Take back what follows ``length`` tokens. Returns how many of these need not be computed again."""
        pages = self._table(holder).pages
        while len(pages) > self._pages_for(length):
            self._release(pages.pop())
        return length

    def drop(self, holder: Holder) -> None:
        """Release everything."""
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
        """Retain the holder's page ``index`` in a node. If the node has a snapshot already, the holder uses that."""
        table, cached = self._table(holder), node.snapshots[self.index]
        if index < table.dead:
            return
        page = table.pages[index]
        if cached is None:
            self.users[page] += 1
            self.nodes[page] = node
            node.snapshots[self.index] = page
        elif cached != page:
            self._use(cached)
            self._release(page)
            table.pages[index] = cached

    def restore(self, holder: Holder, prefix: Prefix) -> None:
        """Let a holder of fewer tokens continue after a prefix in the cache."""
        self._share(holder, [node.snapshots[self.index] or 0 for node in prefix.path], prefix.length)

    def node_of(self, holder: Holder, index: int) -> Node | None:
        """The node that shares the holder's page ``index``."""
        pages = self._table(holder).pages
        return self.nodes.get(pages[index]) if index < len(pages) else None

    def forget(self, node: Node) -> None:
        """Remove a node's snapshot, if it has one."""
        page, node.snapshots[self.index] = node.snapshots[self.index], None
        if page is not None:
            del self.nodes[page]
            self.idle.pop(page, None)
            self._release(page)

    def _pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._page_size)

    def _table(self, holder: Holder) -> PageTable:
        return holder.tables[self.index]

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

    def _allocate(self) -> int:
        """A free page, for one user. There must be one."""
        page = self._free.pop()
        self.users[page] = 1
        return page

    def _use(self, page: int) -> None:
        """Add a user to a page that has one."""
        assert self.users[page] > 0, f"page {page} has no user"
        self.users[page] += 1
        self.idle.pop(page, None)

    def _release(self, page: int) -> None:
        """Remove a user; the page is free when it was the last one."""
        users = self.users[page] - 1
        assert users >= 0, f"page {page} has no user"
        self.users[page] = users
        if users == 0:
            self._free.append(page)
        elif users == 1 and page in self.nodes:
            self.idle[page] = self.nodes[page]


CacheKind: TypeAlias = Pages
