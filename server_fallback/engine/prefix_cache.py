"""The prefix cache: a radix tree over full pages, which finds the pages that hold the longest known prefix of some
tokens.

So a second turn, or a second conversation with the same system prompt, computes only its new tokens. Zheng et al. 2024
(SGLang's RadixAttention). An adapter changes keys and values, so each adapter has a tree of its own.

Partly filled pages are cached in two cases. If a page holds a whole sequence, few pages are ever full, so a sequence
may start from the first tokens of any page: in a copy of it, or in the page itself if nobody else uses it. With smaller
pages, only the requests that together make one answer cache and find the last, partly filled page.
"""

from __future__ import annotations

import heapq
from collections.abc import MutableSequence, Sequence
from itertools import count
from operator import itemgetter

from .page_pool import PagePool

Key = tuple[int, ...]


class Node:
    """A page and its tokens, which follow those of ``parent``. ``last_used`` is a time of the cache's clock."""

    __slots__ = ("children", "key", "last_used", "page", "parent", "queued", "siblings")

    def __init__(self, key: Key, page: int, parent: Node | None, siblings: dict[Key, Node]) -> None:
        self.key, self.page, self.parent, self.siblings = key, page, parent, siblings
        self.children: dict[Key, Node] = {}
        self.last_used = 0
        # Whether it is in the heap of eviction candidates.
        self.queued = False


class CachePosition:
    """How far a sequence's pages are in the tree: its first ``depth`` pages are those of ``node`` and its ancestors.

    A running sequence uses all of them, so none of them can be evicted. When it used them last is recorded in
    ``last_used`` alone, and passed on to the nodes when the sequence leaves.
    """

    __slots__ = ("depth", "last_used", "node")

    def __init__(self) -> None:
        self.node: Node | None = None
        self.depth = 0
        self.last_used = 0


class PrefixCache:
    """The cache is a user of each page that it holds. ``partial_pages``: partly filled pages of every sequence are
    cached and found.
    """

    def __init__(self, pool: PagePool, page_size: int, *, partial_pages: bool = False) -> None:
        self._pool, self._page_size, self._partial_pages = pool, page_size, partial_pages
        self._roots: dict[str | None, dict[Key, Node]] = {}
        self._nodes: dict[int, Node] = {}
        self._heap: list[tuple[int, int]] = []
        # Every use of a page is later than all before it.
        self._tick = count(1).__next__

    def __len__(self) -> int:
        """How many pages it holds."""
        return len(self._nodes)

    def match(self, tokens: Sequence[int], limit: int, adapter: str | None = None) -> list[int]:
        """The full pages of the longest known prefix of ``tokens``, at most ``limit`` pages. The caller is not a user
        of them yet.
        """
        now = self._tick()
        pages: list[int] = []
        level = self._roots.get(adapter)
        while level and len(pages) < limit:
            node = level.get(self._key(tokens, len(pages)))
            if node is None:
                break
            node.last_used = now
            pages.append(node.page)
            level = node.children
        return pages

    def longest(
        self, tokens: Sequence[int], limit: int, adapter: str | None = None, *, partial_page: bool = False
    ) -> tuple[list[int], int]:
        """The pages of the longest known prefix of ``tokens``, and its length, at most ``limit`` tokens.

        ``partial_page``: partly filled pages count too, even if the cache finds only full ones otherwise.
        """
        pages = self.match(tokens, limit // self._page_size, adapter)
        length = len(pages) * self._page_size
        if self._partial_pages or partial_page:
            level = self._nodes[pages[-1]].children if pages else self._roots.get(adapter, {})
            rest = tokens[length:limit]
            nodes = (node for node in level.values() if self._partial_pages or self._is_partial(node))
            found, node = max(
                ((common_length(node.key, rest), node) for node in nodes), key=itemgetter(0), default=(0, None)
            )
            if node is not None and found > 0:
                node.last_used = self._tick()
                return [*pages, node.page], length + found
        return pages, length

    def detach(self, page: int, *, partial_only: bool = False) -> bool:
        """Remove a page that the cache shares with a single sequence, which then owns it. False if others use or extend
        it.

        ``partial_only``: also False if the page is full.
        """
        node = self._nodes.get(page)
        if node is None or node.children or self._pool.users[page] > 2 or (partial_only and not self._is_partial(node)):
            return False
        self._remove(node)
        return True

    def insert(
        self,
        position: CachePosition,
        tokens: Sequence[int],
        pages: MutableSequence[int],
        count: int,
        adapter: str | None = None,
    ) -> None:
        """Cache the first ``count`` pages of a sequence, all full, and move its position there.

        If the same tokens are cached already, the cached page replaces the sequence's own one. So whoever uses a page
        of the tree also uses its ancestors.
        """
        self.touch(position)
        for index in range(position.depth, count):
            level, key, page = self._level(position, adapter), self._key(tokens, index), pages[index]
            node = level.get(key)
            if node is None:
                self._pool.retain(page)
                node = level[key] = self._nodes[page] = Node(key, page, position.node, level)
            elif node.page != page:
                self._pool.share(node.page)
                self._pool.release(page)
                pages[index] = node.page
            position.node, position.depth = node, index + 1

    def touch(self, position: CachePosition) -> None:
        """A sequence uses its pages."""
        position.last_used = self._tick()

    def leave(self, position: CachePosition, pages: Sequence[int]) -> None:
        """Release a sequence's pages, whether they are in the tree or not, and move its position to the root."""
        node = position.node
        while node is not None:
            node.last_used = max(node.last_used, position.last_used)
            node = node.parent
        position.node, position.depth = None, 0
        for page in pages:
            self.release(page)

    def retire(
        self,
        position: CachePosition,
        tokens: Sequence[int],
        pages: Sequence[int],
        adapter: str | None = None,
        *,
        partial_page: bool = False,
    ) -> None:
        """`leave` with pages that hold ``tokens``; with ``partial_pages`` or ``partial_page``, the partly filled page
        is cached.
        """
        if (self._partial_pages or partial_page) and position.depth < len(pages):
            key, level = tuple(tokens[position.depth * self._page_size :]), self._level(position, adapter)
            # A sequence that has just started shares full pages of the tree which its position does not include yet.
            is_cached = len(key) >= self._page_size and not self._partial_pages
            if key and not is_cached and not any(common_length(node.key, key) == len(key) for node in level.values()):
                self._insert_partial(key, pages[position.depth], position, level)
        self.leave(position, pages)

    def discard(self, position: CachePosition, pages: Sequence[int]) -> None:
        """`leave` with pages whose contents are wrong: those that nobody else uses are removed from the cache."""
        node = position.node
        self.leave(position, pages)
        while node is not None and not node.children and self._pool.users[node.page] == 1:
            self._remove(node)
            node = node.parent

    def release(self, page: int) -> None:
        """Remove a user of a page, as `PagePool.release` does."""
        if self._pool.release(page) == 1 and page in self._nodes:
            self._queue(self._nodes[page])

    @property
    def evictable(self) -> int:
        """How many pages `evict` could free: those that only the cache uses."""
        return self._pool.idle

    def evict(self) -> bool:
        """Free the least recently used page. False if there is none to free."""
        while self._heap:
            time, page = heapq.heappop(self._heap)
            node = self._nodes.get(page)
            if node is None or not node.queued:
                continue
            node.queued = False
            if node.children or self._pool.users[page] > 1:
                continue  # It is queued again when that ends.
            if node.last_used > time:
                self._queue(node)
                continue
            self._remove(node)
            return True
        return False

    def clear(self) -> None:
        """Remove everything, as after the loss of the device."""
        for page in self._nodes:
            self._pool.drop(page)
        self._nodes.clear()
        self._roots.clear()
        self._heap.clear()

    def _insert_partial(self, key: Key, page: int, position: CachePosition, level: dict[Key, Node]) -> None:
        """Cache a partly filled page, and remove those that hold a prefix of its tokens."""
        for node in list(level.values()):
            if key[: len(node.key)] == node.key and self._pool.users[node.page] == 1 and not node.children:
                self._remove(node)
        self._pool.retain(page)
        level[key] = self._nodes[page] = node = Node(key, page, position.node, level)
        node.last_used = self._tick()

    def _is_partial(self, node: Node) -> bool:
        return len(node.key) < self._page_size

    def _level(self, position: CachePosition, adapter: str | None) -> dict[Key, Node]:
        """The nodes that follow a position."""
        return self._roots.setdefault(adapter, {}) if position.node is None else position.node.children

    def _remove(self, node: Node) -> None:
        del node.siblings[node.key]
        del self._nodes[node.page]
        self._pool.drop(node.page)
        if node.parent is not None and self._pool.users[node.parent.page] == 1:
            self._queue(node.parent)

    def _queue(self, node: Node) -> None:
        """Add a node to the eviction candidates if nothing follows it; the caller knows that only the cache uses its
        page.
        """
        if not node.queued and not node.children:
            node.queued = True
            heapq.heappush(self._heap, (node.last_used, node.page))

    def _key(self, tokens: Sequence[int], index: int) -> Key:
        return tuple(tokens[index * self._page_size : (index + 1) * self._page_size])


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of the longest common prefix."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(first), len(second)))
