"""The prefix cache: a radix tree over full pages, which finds the pages that hold the longest known prefix of some
tokens.

So a second turn, or a second conversation with the same system prompt, computes only its new tokens. Zheng et al. 2024
(SGLang's RadixAttention). An adapter changes keys and values, so each adapter has a tree of its own.

A node holds a page of each page group. The pages of a group with a window are evicted on their own, and a prefix is
usable if that group still has the pages within the window before its end.

Partly filled pages are cached in two cases. If a page holds a whole sequence, few pages are ever full, so a sequence
may start from the first tokens of any page: in a copy of it, or in the page itself if nobody else uses it. With smaller
pages, only the requests that together make one answer cache and find the last, partly filled page.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import partial
from itertools import count
from operator import itemgetter
from typing import NamedTuple

from .page_pool import PagePool
from .page_table import PageTable

Key = tuple[int, ...]


class Entry:
    """A page of a node. ``last_used`` is a time of the cache's clock."""

    __slots__ = ("last_used", "node", "page", "queued")

    def __init__(self, node: Node, page: int, last_used: int) -> None:
        self.node, self.page, self.last_used = node, page, last_used
        # Whether it is in the heap of eviction candidates.
        self.queued = False


class Node:
    """The tokens of a page, which follow those of ``parent``, and by group the entry of the page; None without it.
    ``number`` rises in the order of insertion.
    """

    __slots__ = ("children", "entries", "is_removed", "key", "number", "parent", "siblings")

    def __init__(self, key: Key, parent: Node | None, siblings: dict[Key, Node], num_groups: int, number: int) -> None:
        self.key, self.parent, self.siblings, self.number = key, parent, siblings, number
        self.children: dict[Key, Node] = {}
        self.entries: list[Entry | None] = [None] * num_groups
        self.is_removed = False

    @property
    def is_empty(self) -> bool:
        return not self.children and not any(self.entries)


class CachePosition:
    """How far a sequence's pages are in the tree: its first ``depth`` pages are those of ``node`` and its ancestors.

    A running sequence uses all of them that are within the window, so none of these can be evicted. The time of its
    last use is recorded only in ``last_used``, and is copied to the entries when the sequence leaves.
    """

    __slots__ = ("depth", "last_used", "node")

    def __init__(self) -> None:
        self.node: Node | None = None
        self.depth = 0
        self.last_used = 0


class Match(NamedTuple):
    """The longest usable prefix of some tokens: its ``length``, and its pages by group, 0 for those behind the
    window.
    """

    length: int
    pages: list[list[int]]


class PrefixCache:
    """The cache is a user of each page that it holds. ``pools``: that of each group. ``partial_pages``: partly filled
    pages of every sequence are cached and found.
    """

    def __init__(self, pools: Sequence[PagePool], page_size: int, *, partial_pages: bool = False) -> None:
        self._pools, self._page_size, self._partial_pages = pools, page_size, partial_pages
        self._roots: dict[str | None, dict[Key, Node]] = {}
        # By group: the entries by page, and the eviction candidates by the time of their last use.
        self._entries: list[dict[int, Entry]] = [{} for _ in pools]
        self._heaps: list[list[tuple[int, int, int, Entry]]] = [[] for _ in pools]
        self._windowed = [group for group, pool in enumerate(pools) if pool.window is not None]
        # Every use of a page is later than all before it.
        self.tick = count(1).__next__
        self._number = count().__next__
        for group, pool in enumerate(pools):
            pool.on_idle = partial(self._on_idle, group)

    def num_pages(self, group: int = 0) -> int:
        """How many pages of a group it holds."""
        return len(self._entries[group])

    def match(self, tokens: Sequence[int], limit: int, adapter: str | None = None) -> Match:
        """The longest usable prefix of full pages, at most ``limit``. The caller is not a user of them yet."""
        path, usable = self._walk(tokens, limit, adapter)
        return self._match(path[:usable], usable * self._page_size)

    def longest(
        self, tokens: Sequence[int], limit: int, adapter: str | None = None, *, partial_page: bool = False
    ) -> Match:
        """The longest usable prefix of at most ``limit`` tokens.

        ``partial_page``: partly filled pages count too, even if the cache finds only full ones otherwise.
        """
        path, usable = self._walk(tokens, limit // self._page_size, adapter)
        if self._partial_pages or partial_page:
            level = path[-1].children if path else self._roots.get(adapter, {})
            length = len(path) * self._page_size
            rest = tokens[length:limit]
            nodes = (node for node in level.values() if self._partial_pages or self._is_partial(node))
            common, node = max(
                ((common_length(node.key, rest), node) for node in nodes), key=itemgetter(0), default=(0, None)
            )
            if node is not None and common > 0 and self._is_usable([*path, node], length + common):
                return self._match([*path, node], length + common)
        return self._match(path[:usable], usable * self._page_size)

    def detach(self, tables: Sequence[PageTable], index: int, *, partial_only: bool = False) -> bool:
        """Remove the pages at an index of a sequence's tables, which then owns them. False if others use or extend
        them.

        ``partial_only``: also False if they are full.
        """
        entry = self._entries[0].get(tables[0].pages[index])
        if entry is None or entry.node.children or (partial_only and not self._is_partial(entry.node)):
            return False
        for own, table in zip(entry.node.entries, tables, strict=True):
            if own is not None and (own.page != table.pages[index] or table.pool.users[own.page] > 2):
                return False
        self._remove_pages(entry.node)
        self._prune(entry.node)
        return True

    def insert(
        self,
        position: CachePosition,
        tokens: Sequence[int],
        tables: Sequence[PageTable],
        count: int,
        adapter: str | None = None,
    ) -> None:
        """Cache the first ``count`` pages of a sequence, all full, and move its position there.

        If the same tokens are cached already, the cached page replaces the sequence's own one. Therefore a user of a
        page in the tree also uses the pages of its ancestors within the window.
        """
        self.touch(position)
        # A node is removed when all of its pages have been evicted, which lie behind the sequence's window then.
        if position.node is not None and position.node.is_removed:
            position.node, position.depth = None, 0
        for index in range(position.depth, count):
            level, key = self._level(position, adapter), self._key(tokens, index)
            node = level.get(key)
            if node is None:
                node = level[key] = Node(key, position.node, level, len(self._pools), self._number())
            for group, table in enumerate(tables):
                if index >= table.dead:
                    self._share(node, group, table, index, position.last_used)
            position.node, position.depth = node, index + 1

    def touch(self, position: CachePosition) -> None:
        """A sequence uses its pages."""
        position.last_used = self.tick()

    def leave(self, position: CachePosition, tables: Sequence[PageTable]) -> None:
        """Release a sequence's pages, whether they are in the tree or not, and move its position to the root."""
        last = node = position.node
        while node is not None:
            for pool, entry in zip(self._pools, node.entries, strict=True):
                # The other entries lie behind the window.
                if entry is not None and pool.users[entry.page] > 1:
                    entry.last_used = max(entry.last_used, position.last_used)
            node = node.parent
        position.node, position.depth = None, 0
        for table in tables:
            table.clear()
        if last is not None:
            self._prune(last)

    def retire(
        self,
        position: CachePosition,
        tokens: Sequence[int],
        tables: Sequence[PageTable],
        adapter: str | None = None,
        *,
        partial_page: bool = False,
    ) -> None:
        """`leave` with pages that hold ``tokens``; with ``partial_pages`` or ``partial_page``, the partly filled page
        is cached.
        """
        if (self._partial_pages or partial_page) and tables and position.depth < len(tables[0].pages):
            key, level = tuple(tokens[position.depth * self._page_size :]), self._level(position, adapter)
            # A sequence that has just started shares full pages of the tree which its position does not include yet.
            is_cached = len(key) >= self._page_size and not self._partial_pages
            if key and not is_cached and not any(common_length(node.key, key) == len(key) for node in level.values()):
                self._insert_partial(key, tables, position, level)
        self.leave(position, tables)

    def discard(self, position: CachePosition, tables: Sequence[PageTable]) -> None:
        """`leave` with pages whose contents are wrong: those that nobody else uses are removed from the cache."""
        node = position.node
        self.leave(position, tables)
        while node is not None and not node.is_removed and not node.children and self._is_idle(node):
            self._remove_pages(node)
            self._prune(node)
            node = node.parent

    def evict(self, group: int = 0) -> bool:
        """Free the least recently used page of a group. Without a window it is the last one of a prefix, which becomes
        shorter in all groups. False if there is none to free.
        """
        heap, pool = self._heaps[group], self._pools[group]
        while heap:
            time, _, _, entry = heapq.heappop(heap)
            if not entry.queued:
                continue  # It was removed.
            entry.queued = False
            if pool.users[entry.page] > 1 or (pool.window is None and entry.node.children):
                continue  # It is queued again when that ends.
            if entry.last_used > time:
                self._queue(group, entry)
                continue
            self._remove_pages(entry.node, None if pool.window is None else group)
            self._prune(entry.node)
            return True
        return False

    def clear(self) -> None:
        """Remove everything, as after the loss of the device."""
        for pool, entries, heap in zip(self._pools, self._entries, self._heaps, strict=True):
            for page, entry in entries.items():
                entry.queued = False
                entry.node.is_removed = True
                pool.drop(page)
            entries.clear()
            heap.clear()
        self._roots.clear()

    # --- finding a prefix ---

    def _walk(self, tokens: Sequence[int], limit: int, adapter: str | None) -> tuple[list[Node], int]:
        """The nodes of the longest known prefix of at most ``limit`` pages, and how many of them are usable."""
        path: list[Node] = []
        level = self._roots.get(adapter)
        while level and len(path) < limit:
            node = level.get(self._key(tokens, len(path)))
            if node is None:
                break
            path.append(node)
            level = node.children
        if not self._windowed:
            return path, len(path)
        usable = 0
        # By group, the number of pages up to the last one that is missing.
        incomplete = [0] * len(self._pools)
        for depth, node in enumerate(path, 1):
            for group, entry in enumerate(node.entries):
                if entry is None:
                    incomplete[group] = depth
            length = depth * self._page_size
            if all(missing <= pool.dead_pages(length) for missing, pool in zip(incomplete, self._pools, strict=True)):
                usable = depth
        return path, usable

    def _is_usable(self, path: Sequence[Node], length: int) -> bool:
        """Whether no page is missing within the windows before the end of a prefix."""
        return all(
            node.entries[group] is not None
            for group in self._windowed
            for node in path[self._pools[group].dead_pages(length) :]
        )

    def _match(self, path: Sequence[Node], length: int) -> Match:
        """The pages of a usable prefix, which are used now."""
        pages = []
        for group, pool in enumerate(self._pools):
            dead = pool.dead_pages(length)
            table = [0] * min(dead, len(path))
            for node in path[dead:]:
                entry = node.entries[group]
                assert entry is not None, "the prefix is usable"
                entry.last_used = self.tick()
                table.append(entry.page)
            pages.append(table)
        return Match(length, pages)

    # --- changing the tree ---

    def _share(self, node: Node, group: int, table: PageTable, index: int, last_used: int) -> None:
        """Give a node a sequence's page, or the sequence the node's page."""
        page, entry = table.pages[index], node.entries[group]
        if entry is None:
            table.pool.retain(page)
            node.entries[group] = self._entries[group][page] = Entry(node, page, last_used)
        elif entry.page != page:
            table.pool.share(entry.page)
            table.pool.release(page)
            table.pages[index] = entry.page

    def _insert_partial(
        self, key: Key, tables: Sequence[PageTable], position: CachePosition, level: dict[Key, Node]
    ) -> None:
        """Cache a partly filled page, and remove those that hold a prefix of its tokens."""
        for node in list(level.values()):
            if key[: len(node.key)] == node.key and self._is_idle(node) and not node.children:
                self._remove_pages(node)
                del level[node.key]
                node.is_removed = True
        node = level[key] = Node(key, position.node, level, len(self._pools), self._number())
        now = self.tick()
        for group, table in enumerate(tables):
            self._share(node, group, table, position.depth, now)

    def _is_partial(self, node: Node) -> bool:
        return len(node.key) < self._page_size

    def _is_idle(self, node: Node) -> bool:
        """Whether only the cache uses its pages."""
        return all(
            entry is None or pool.users[entry.page] == 1 for pool, entry in zip(self._pools, node.entries, strict=True)
        )

    def _level(self, position: CachePosition, adapter: str | None) -> dict[Key, Node]:
        """The nodes that follow a position."""
        return self._roots.setdefault(adapter, {}) if position.node is None else position.node.children

    def _remove_pages(self, node: Node, only: int | None = None) -> None:
        """Remove the page of a group from a node, or those of all groups."""
        for group, entry in enumerate(node.entries):
            if entry is not None and only in (None, group):
                entry.queued = False
                node.entries[group] = None
                del self._entries[group][entry.page]
                self._pools[group].drop(entry.page)

    def _prune(self, node: Node) -> None:
        """Remove a node without pages and children, and then its ancestors if the same is true of them."""
        last: Node | None = node
        while last is not None and last.is_empty and not last.is_removed:
            del last.siblings[last.key]
            last.is_removed = True
            last = last.parent
        if last is not None and not last.children:
            for group, entry in enumerate(last.entries):
                if entry is not None and self._pools[group].users[entry.page] == 1:
                    self._queue(group, entry)

    def _on_idle(self, group: int, page: int) -> None:
        self._queue(group, self._entries[group][page])

    def _queue(self, group: int, entry: Entry) -> None:
        """Add an idle page to the eviction candidates if it can be evicted: without a window, if nothing follows it."""
        if not entry.queued and (self._pools[group].window is not None or not entry.node.children):
            entry.queued = True
            heapq.heappush(self._heaps[group], (entry.last_used, entry.node.number, self._number(), entry))

    def _key(self, tokens: Sequence[int], index: int) -> Key:
        return tuple(tokens[index * self._page_size : (index + 1) * self._page_size])


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of the longest common prefix."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(first), len(second)))
