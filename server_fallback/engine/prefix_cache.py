"""The prefix cache: a radix tree over full pages. Token ids flow in; the pages that hold the keys and values of their beginning flow out.

So a second turn, or a second conversation with the same system prompt, computes new tokens only. Zheng et al. 2024 (SGLang's
RadixAttention). An adapter changes keys and values, so each has a tree of its own.

Where a page holds a whole sequence, few are ever full: then pages of sequences that have left are kept with as many tokens as they hold,
and a sequence may start from the first tokens of a page. It goes on in a copy, or in the page itself where there is no other.
Of smaller pages the unfilled ones are kept, and found, of sequences that are parts of one answer: each goes on where one before it stopped.
"""

from __future__ import annotations

import heapq
from collections.abc import MutableSequence, Sequence
from operator import itemgetter

from .page_pool import PagePool

Key = tuple[int, ...]


class Node:
    """A page and the tokens that it holds, behind those of ``parent``. ``last_used`` is a time of the cache's clock."""

    __slots__ = ("children", "key", "last_used", "page", "parent", "queued", "siblings")

    def __init__(self, key: Key, page: int, parent: Node | None, siblings: dict[Key, Node]) -> None:
        self.key, self.page, self.parent, self.siblings = key, page, parent, siblings
        self.children: dict[Key, Node] = {}
        self.last_used = 0
        # Whether it lies in the heap of what may be evicted.
        self.queued = False


class Place:
    """How far a sequence's pages are in the tree: its first ``depth`` pages are those of ``node`` and its parents.

    A running sequence uses all of them, so that none can be evicted; when it used them last is noted in ``time`` alone until it leaves.
    """

    __slots__ = ("depth", "node", "time")

    def __init__(self) -> None:
        self.node: Node | None = None
        self.depth = 0
        self.time = 0


class PrefixCache:
    """The cache is a user of each page that it holds. ``beginnings``: pages are kept, and found, that are not full."""

    def __init__(self, pool: PagePool, page_size: int, *, beginnings: bool = False) -> None:
        self._pool, self._page_size, self._beginnings = pool, page_size, beginnings
        self._roots: dict[str | None, dict[Key, Node]] = {}
        self._nodes: dict[int, Node] = {}
        self._heap: list[tuple[int, int]] = []
        self._clock = 0

    def __len__(self) -> int:
        """How many pages it holds."""
        return len(self._nodes)

    def match(self, tokens: Sequence[int], limit: int, adapter: str | None = None) -> list[int]:
        """The pages of the longest known beginning of ``tokens``, at most ``limit`` of them. They are not shared yet."""
        self._clock += 1
        pages: list[int] = []
        level = self._roots.get(adapter)
        while level and len(pages) < limit:
            node = level.get(self._key(tokens, len(pages)))
            if node is None:
                break
            node.last_used = self._clock
            pages.append(node.page)
            level = node.children
        return pages

    def longest(self, tokens: Sequence[int], most: int, adapter: str | None = None, *, part: bool = False) -> tuple[list[int], int]:
        """The pages of the longest known beginning of ``tokens``, and how many it has, at most ``most``. ``part``: unfilled ones, too."""
        pages = self.match(tokens, most // self._page_size, adapter)
        length = len(pages) * self._page_size
        if self._beginnings or part:
            level = self._nodes[pages[-1]].children if pages else self._roots.get(adapter, {})
            rest = tokens[length:most]
            nodes = (node for node in level.values() if self._beginnings or self._unfilled(node))
            found, node = max(((shared(node.key, rest), node) for node in nodes), key=itemgetter(0), default=(0, None))
            if node is not None and found > 0:
                node.last_used = self._clock
                return [*pages, node.page], length + found
        return pages, length

    def hand_over(self, page: int, *, unfilled: bool = False) -> bool:
        """Forget a page that the cache shares with one sequence alone, which then has it for itself. False where there are others.

        ``unfilled``: also False where it is full.
        """
        node = self._nodes.get(page)
        if node is None or node.children or self._pool.users(page) > 2 or (unfilled and not self._unfilled(node)):
            return False
        self._remove(node)
        return True

    def insert(self, place: Place, tokens: Sequence[int], pages: MutableSequence[int], count: int, adapter: str | None = None) -> None:
        """Remember the first ``count`` pages of a sequence, all full, and move its place there.

        Where the same tokens are known already, the sequence gets the page known first in place of its own: so whoever uses a page of the
        tree uses those on the way to it as well.
        """
        self._clock += 1
        place.time = self._clock
        for index in range(place.depth, count):
            level, key, page = self._level(place, adapter), self._key(tokens, index), pages[index]
            node = level.get(key)
            if node is None:
                self._pool.keep(page)
                node = level[key] = self._nodes[page] = Node(key, page, place.node, level)
            elif node.page != page:
                self._pool.share(node.page)
                self._pool.release(page)
                pages[index] = node.page
            place.node, place.depth = node, index + 1

    def leave(self, place: Place, pages: Sequence[int]) -> None:
        """A sequence lets go of its pages, in the tree or not; its place is then at the root."""
        node = place.node
        while node is not None:
            node.last_used = max(node.last_used, place.time)
            node = node.parent
        place.node, place.depth = None, 0
        for page in pages:
            self.release(page)

    def retire(self, place: Place, tokens: Sequence[int], pages: Sequence[int], adapter: str | None = None, *, part: bool = False) -> None:
        """As `leave`, of a sequence whose pages hold these tokens. With ``beginnings``, and of a ``part``, the unfilled page is kept."""
        if (self._beginnings or part) and place.depth < len(pages):
            key, level = tuple(tokens[place.depth * self._page_size :]), self._level(place, adapter)
            # Full pages that are not in the tree hold what was not told.
            untold = len(key) >= self._page_size and not self._beginnings
            if key and not untold and not any(shared(node.key, key) == len(key) for node in level.values()):
                self._keep(key, pages[place.depth], place, level)
        self.leave(place, pages)

    def _keep(self, key: Key, page: int, place: Place, level: dict[Key, Node]) -> None:
        """Remember a page that is not full. Pages that hold no more than its beginning are of no use then."""
        for node in list(level.values()):
            if key[: len(node.key)] == node.key and self._pool.users(node.page) == 1 and not node.children:
                self._remove(node)
        self._clock += 1
        self._pool.keep(page)
        level[key] = self._nodes[page] = node = Node(key, page, place.node, level)
        node.last_used = self._clock

    def _unfilled(self, node: Node) -> bool:
        return len(node.key) < self._page_size

    def _level(self, place: Place, adapter: str | None) -> dict[Key, Node]:
        """What is known behind a place."""
        return self._roots.setdefault(adapter, {}) if place.node is None else place.node.children

    def release(self, page: int) -> None:
        """One user of a page less, as `PagePool.release`."""
        if self._pool.release(page) == 1 and page in self._nodes:
            self._queue(self._nodes[page])

    @property
    def evictable(self) -> int:
        """How many pages `evict` could free: all that nobody else uses."""
        return self._pool.idle

    def evict(self) -> bool:
        """Free the page that was not used for longest. False where there is none to free."""
        while self._heap:
            time, page = heapq.heappop(self._heap)
            node = self._nodes.get(page)
            if node is None or not node.queued:
                continue
            node.queued = False
            if node.children or self._pool.users(page) > 1:
                continue  # It is queued again when that ends.
            if node.last_used > time:
                self._queue(node)
                continue
            self._remove(node)
            return True
        return False

    def forget(self, place: Place, pages: Sequence[int]) -> None:
        """As `leave`, and what nobody else uses of the pages is forgotten: what they hold is wrong."""
        node = place.node
        self.leave(place, pages)
        while node is not None and not node.children and self._pool.users(node.page) == 1:
            self._remove(node)
            node = node.parent

    def clear(self) -> None:
        """Forget everything, as after the loss of the device."""
        for page in self._nodes:
            self._pool.drop(page)
        self._nodes.clear()
        self._roots.clear()
        self._heap.clear()

    def _remove(self, node: Node) -> None:
        del node.siblings[node.key]
        del self._nodes[node.page]
        self._pool.drop(node.page)
        if node.parent is not None and self._pool.users(node.parent.page) == 1:
            self._queue(node.parent)

    def _queue(self, node: Node) -> None:
        """Note a node that may be evicted: nobody else uses its page, and nothing is behind it."""
        if not node.queued and not node.children:
            node.queued = True
            heapq.heappush(self._heap, (node.last_used, node.page))

    def _key(self, tokens: Sequence[int], index: int) -> Key:
        return tuple(tokens[index * self._page_size : (index + 1) * self._page_size])


def shared(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(first), len(second)))
